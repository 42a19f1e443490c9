#if defined(__x86_64__)
#include "search.h"
#include "target.h"
FF_TARGET("popcnt")

#define NAME ff_hammings_popcnt
#include "hammings.inc"

FF_TARGET_END
#endif
