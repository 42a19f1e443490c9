#if defined(__x86_64__)
#include <math.h>

#include "flow.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

#define SIZES(X) X(2) X(3) X(4) X(5) X(6)
#define NAME ff_flow_avx2
#include "body.inc"

FF_TARGET_END
#endif
