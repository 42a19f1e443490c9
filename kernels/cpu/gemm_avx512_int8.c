/* Products of bytes with AVX512-VNNI: four products a lane, exact in int32. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#include <math.h>

#include "encoder.h"

#include "encoder_vector_avx512.inc"
#include "gemm_common.inc"
#include "gemm_int8.inc"

#define NAME(x) x##_int8
#define PRODUCT ff_int8_avx512
#define ROWS 14
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define LANE int32_t
#define PER_STEP 1
#define ACC ivec
#define ZERO SET1I(0)
#define LOAD_ACC LOADI
#define STORE_ACC STOREI
#define ADD_ACC ADDI
#define WEIGHTS(b) const ivec b0 = LOADI(b), b1 = LOADI(b + VL)
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)); \
    acc0 = _mm512_dpbusd_epi32(acc0, y, b0); \
    acc1 = _mm512_dpbusd_epi32(acc1, y, b1)
#define RESCALE rescale
#include "gemm_body.inc"
#endif
