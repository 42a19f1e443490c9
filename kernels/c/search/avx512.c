#if defined(__x86_64__)
#include "search.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES)

#define NAME ff_dots_avx512
#define WIDE 32  /* bytes per step */
#define ZERO _mm512_setzero_si512()
#define WIDEN(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define PAIRS(a, b) _mm512_madd_epi16(a, b)
#define TOTAL(v) _mm512_reduce_add_epi32(v)
#include "dots.inc"

#undef NAME
#define NAME ff_products_avx512
#include "floats.inc"

FF_TARGET_END
#endif
