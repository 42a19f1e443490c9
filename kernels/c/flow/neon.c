#if defined(__aarch64__)
#include <math.h>

#include "flow.h"
#include "vector_neon.h"

#define SIZES(X) X(2) X(3) X(4) X(5) X(6)
#define NAME ff_flow_neon
#define ADD_CHAIN add_rows
#include "body.inc"

#endif
