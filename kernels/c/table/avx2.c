/* The mean of rows with AVX2. */
#if defined(__x86_64__)
#include "table.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

/* As portable.c widens a half: not every processor with AVX2 tells that it has F16C. */
static inline vec widen_half(const char *p)
{
    const __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i digits = _mm256_and_si256(h, SET1I(0x7fff));
    const __m256i beyond = _mm256_cmpgt_epi32(digits, SET1I(0x7bff)), below = _mm256_cmpgt_epi32(SET1I(0x400), digits);
    const __m256i exponent = ADDI(SET1I(112 << 23), _mm256_and_si256(beyond, SET1I(112 << 23)));
    const vec normal = _mm256_castsi256_ps(ADDI(_mm256_slli_epi32(digits, 13), exponent));
    const vec small = MUL(TO_FLOAT(digits), SET1(0x1p-24f));
    const vec sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_andnot_si256(SET1I(0x7fff), h), 16));
    return _mm256_or_ps(_mm256_blendv_ps(normal, small, _mm256_castsi256_ps(below)), sign);
}

#define BODY ff_table_avx2
#define WIDEN_HALF(p) widen_half(p)
#define WIDEN_BYTES(p) TO_FLOAT(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))
#include "body.inc"

FF_TARGET_END
#endif
