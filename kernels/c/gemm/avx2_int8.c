/* int8 products with AVX2. vpmaddubsw's sums of two products fit 16 bits: one factor is |operand|, and the weight takes
   the operand's sign. */
#if defined(__x86_64__)
#include <math.h>

#include "gemm.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

#define DOT(acc, size, sign, w) \
    _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(w, sign)), _mm256_set1_epi16(1)))

#define PRODUCT ff_int8_avx2
#define ROWS 4  /* 8 of 16 registers hold sums */
#define ROW_SIZES(X) X(1) X(2) X(3) X(4)
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)), size = _mm256_abs_epi8(y); \
    acc0 = DOT(acc0, size, y, b0); \
    acc1 = DOT(acc1, size, y, b1)
#include "int8.inc"

FF_TARGET_END
#endif
