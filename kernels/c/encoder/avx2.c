#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "encoder.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

#include "half_avx2.inc"

#define BODY ff_body_avx2
#define ATTENTION ff_attention_avx2
#define FLOAT ff_float_avx2
#define WIDE ff_wide_avx2
#define SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define WIDE_MR 5  /* 10 of 16 registers hold sums */
#define WIDE_SIZES(X) X(1) X(2) X(3) X(4) X(5)

#include "body.inc"

FF_TARGET_END
#endif
