#if defined(__x86_64__)
#include "table.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES)

#define BODY ff_table_avx512
#define WIDEN_BYTES(p) TO_FLOAT(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))))
#include "body.inc"

FF_TARGET_END
#endif
