#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "encoder.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES)

#define BODY ff_body_avx512
#define ATTENTION ff_attention_avx512
#define FLOAT ff_float_avx512
#define WIDE ff_wide_avx512
#define SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define WIDE_MR 12  /* 24 of 32 registers hold sums */
#define WIDE_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

#include "body.inc"

FF_TARGET_END
#endif
