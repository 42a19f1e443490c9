#if defined(__x86_64__)
#include "table.h"
#include "vector_avx2.h"
FF_TARGET(FF_AVX2_FEATURES)

#include "half_avx2.inc"

#define BODY ff_table_avx2
#define WIDEN_BYTES(p) TO_FLOAT(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))
#include "body.inc"

FF_TARGET_END
#endif
