/* Dot products of int8 with AVX-512: 32 bytes a step. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "search.h"
#include "target.h"
FF_TARGET(FF_AVX512_FEATURES)

typedef __m512i ivec;

#define NAME ff_dots_avx512
#define WIDE 32
#define ZERO _mm512_setzero_si512()
#define WIDEN(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define PAIRS(a, b) _mm512_madd_epi16(a, b)
#define ADDI(a, b) _mm512_add_epi32(a, b)
#define TOTAL(v) _mm512_reduce_add_epi32(v)
#include "dots.inc"

FF_TARGET_END
#endif
