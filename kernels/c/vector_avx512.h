/* Vectors of 16 floats. Include before FF_TARGET. */
#include <immintrin.h>

#include "cpu.h"
#include "target.h"

#define VL FF_AVX512_VECTOR
#define MR FF_AVX512_ROWS
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SET1(x) _mm512_set1_ps(x)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUB(a, b) _mm512_sub_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define DIV(a, b) _mm512_div_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#define MIN(a, b) _mm512_min_ps(a, b)
#define ROUND(a) _mm512_roundscale_ps(a, 8)
#define POWER2(n) _mm512_scalef_ps(_mm512_set1_ps(1), n)
#define SCALE(v, n) _mm512_scalef_ps(v, n)
#define REVERSE(v) _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v)
#define INDEX(first) \
    _mm512_set_epi32(first + 23, first + 7, first + 22, first + 6, first + 21, first + 5, first + 20, first + 4, \
                     first + 19, first + 3, first + 18, first + 2, first + 17, first + 1, first + 16, first)
#define LOW(a, b) _mm512_permutex2var_ps(a, INDEX(0), b)
#define HIGH(a, b) _mm512_permutex2var_ps(a, INDEX(8), b)
#define LARGEST(v) _mm512_reduce_max_ps(v)
#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)
typedef __m512 vec;

/* As in vector_avx2.h. */
#define LOADI(p) _mm512_loadu_si512(p)
#define STOREI(p, v) _mm512_storeu_si512(p, v)
#define SET1I(x) _mm512_set1_epi32(x)
#define ADDI(a, b) _mm512_add_epi32(a, b)
#define TO_FLOAT(a) _mm512_cvtepi32_ps(a)
#define LOWER(w) _mm512_castsi512_ps(_mm512_slli_epi32(w, 16))
#define UPPER(w) _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(-65536)))
/* WIDEN_HALF: VL IEEE halves as floats. BITS: the bits of floats. STORE_BYTES: the lowest byte of each lane. */
#define WIDEN_HALF(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define BITS(v) _mm512_castps_si512(v)
#define STORE_BYTES(p, w) _mm_storeu_si128((__m128i *)(void *)(p), _mm512_cvtepi32_epi8(w))
typedef __m512i ivec;

/* STORE_HALF: round 2 VL floats to bfloat16, ties to even. */
#define ROUNDED(v) ADDI(BITS(v), ADDI(_mm512_and_si512(_mm512_srli_epi32(BITS(v), 16), SET1I(1)), SET1I(0x7fff)))
#define HALF_OF(v) _mm512_cvtepi32_epi16(_mm512_srli_epi32(ROUNDED(v), 16))
#define STORE_HALF(p, low, high) \
    _mm512_storeu_si512(p, _mm512_inserti64x4(_mm512_castsi256_si512(HALF_OF(low)), HALF_OF(high), 1))
