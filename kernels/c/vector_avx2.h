/* Vectors of 8 floats. Include before FF_TARGET. */
#include <immintrin.h>

#include "cpu.h"
#include "target.h"

#define VL FF_AVX2_VECTOR
#define MR FF_AVX2_ROWS
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SET1(x) _mm256_set1_ps(x)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MAX(a, b) _mm256_max_ps(a, b)
#define MIN(a, b) _mm256_min_ps(a, b)
#define ROUND(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define POWER2(n) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23))
#define REVERSE(v) _mm256_permutevar8x32_ps(v, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define LOW(a, b) _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20)
#define HIGH(a, b) _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31)
#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
typedef __m256 vec;

/* Names in I: vectors of 32-bit integers. LOWER, UPPER: the lower or upper bfloat16 of 32-bit lanes, as floats. */
#define LOADI(p) _mm256_loadu_si256((const __m256i *)(p))
#define STOREI(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define SET1I(x) _mm256_set1_epi32(x)
#define ADDI(a, b) _mm256_add_epi32(a, b)
#define TO_FLOAT(a) _mm256_cvtepi32_ps(a)
#define LOWER(w) _mm256_castsi256_ps(_mm256_slli_epi32(w, 16))
#define UPPER(w) _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(-65536)))
typedef __m256i ivec;
