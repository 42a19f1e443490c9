/* Products and attention with AVX512-BF16. */
#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "encoder.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",avx512bf16")

#define HALF
#undef STORE_HALF
#define STORE_HALF(p, low, high) _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low))
#define CHAIN 384  /* steps: 768 products are summed in registers before a store */
#define DEPTH (2 * CHAIN)
#include "gemm/common.inc"
#include "lanes.inc"

#define NAME(x) x##_bf16
#define PRODUCT ff_bf16_avx512
#define ROWS 14
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define LANE int32_t
#define PER_STEP 1
#define ACC vec
#define ZERO SET1(0)
#define LOAD_ACC LOAD
#define STORE_ACC STORE
#define ADD_ACC ADD
#define WEIGHTS(b) const __m512bh b0 = (__m512bh)LOADI(b), b1 = (__m512bh)LOADI(b + VL)
#define MULTIPLY(x, acc0, acc1) \
    const __m512bh y = (__m512bh)SET1I(*(x)); \
    acc0 = _mm512_dpbf16_ps(acc0, y, b0); \
    acc1 = _mm512_dpbf16_ps(acc1, y, b1)
#include "gemm/body.inc"

#define ATTENTION ff_attention_avx512_bf16
#define TILES tiles_bf16
#define LANES 2
#include "attention.inc"

FF_TARGET_END
#endif
