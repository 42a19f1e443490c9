#if defined(__x86_64__)
#include <math.h>

#include "flow.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES)

#define SIZES(X) X(2) X(4) X(6) X(8) X(10) X(12) X(14)
#define NAME ff_flow_avx512
#include "body.inc"

FF_TARGET_END
#endif
