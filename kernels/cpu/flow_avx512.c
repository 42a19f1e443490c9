/* The flow with AVX-512: 16 floats, tiles of 14 rows by 32 columns in 28 of the 32 registers. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "cpu.h"
#include "target.h"
FF_TARGET(FF_AVX512_FEATURES)

#define VL 16
#define MR 14
#define SIZES(X) X(2) X(4) X(6) X(8) X(10) X(12) X(14)
#define NAME ff_flow_avx512
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SET1(x) _mm512_set1_ps(x)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUB(a, b) _mm512_sub_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define DIV(a, b) _mm512_div_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#define ROUND(a) _mm512_roundscale_ps(a, 8)
#define POWER2(n) _mm512_scalef_ps(_mm512_set1_ps(1), n)
#define REVERSE(v) _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v)
typedef __m512 vec;

#include "flow_body.inc"

FF_TARGET_END
#endif
