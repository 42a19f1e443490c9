/* Attention of amx.c with emulated tiles, for tests. */
#include "encoder.h"

#if FF_HAS_AMX
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",avx512bf16")

#define EMULATED
#define ATTENTION ff_attention_amx_emulated
#include "amx.inc"

FF_TARGET_END
#endif
