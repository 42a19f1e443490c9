#if defined(__x86_64__)
#include "search.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

static inline int32_t total(ivec v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

#define NAME ff_dots_avx2
#define WIDE 16  /* bytes per step */
#define ZERO _mm256_setzero_si256()
#define WIDEN(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define PAIRS(a, b) _mm256_madd_epi16(a, b)
#define TOTAL(v) total(v)
#include "dots.inc"

#undef NAME
#define NAME ff_products_avx2
#include "floats.inc"

FF_TARGET_END
#endif
