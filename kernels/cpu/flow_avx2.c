/* The flow with AVX2 and FMA: 8 floats, tiles of 6 rows by 16 columns in 12 of the 16 registers. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "cpu.h"
#include "target.h"
FF_TARGET(FF_AVX2_FEATURES)

#define VL 8
#define MR 6
#define SIZES(X) X(2) X(3) X(4) X(5) X(6)
#define NAME ff_flow_avx2
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SET1(x) _mm256_set1_ps(x)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MAX(a, b) _mm256_max_ps(a, b)
#define ROUND(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define POWER2(n) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23))
#define REVERSE(v) _mm256_permutevar8x32_ps(v, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7))
typedef __m256 vec;

#include "flow_body.inc"

FF_TARGET_END
#endif
