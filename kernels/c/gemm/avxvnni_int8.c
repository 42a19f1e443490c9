#include "gemm.h"

#if FF_HAS_AVXVNNI
#include <math.h>

#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES ",avxvnni")

#define PRODUCT ff_int8_avxvnni
#define ROWS 6
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)); \
    acc0 = _mm256_dpbusd_avx_epi32(acc0, y, b0); \
    acc1 = _mm256_dpbusd_avx_epi32(acc1, y, b1)
#include "int8.inc"

FF_TARGET_END
#endif
