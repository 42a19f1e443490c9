#include "encoder.h"

#if FF_HAS_AMX
#include <math.h>
#include <string.h>

#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",avx512bf16,amx-tile,amx-bf16,amx-int8")

#define ATTENTION ff_attention_amx
#include "amx.inc"

FF_TARGET_END
#endif
