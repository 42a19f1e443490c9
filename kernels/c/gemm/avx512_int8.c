#if defined(__x86_64__)
#include <math.h>

#include "gemm.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",avx512vnni")

#define HALF
#define PRODUCT ff_int8_avx512
#define ROWS 14
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)); \
    acc0 = _mm512_dpbusd_epi32(acc0, y, b0); \
    acc1 = _mm512_dpbusd_epi32(acc1, y, b1)
#include "int8.inc"

FF_TARGET_END
#endif
