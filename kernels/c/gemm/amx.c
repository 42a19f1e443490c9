#include "gemm.h"

#if FF_HAS_AMX
#include <math.h>

#include "mxcsr.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",amx-tile,amx-bf16,amx-int8")

#define BF16 ff_bf16_amx
#define INT8 ff_int8_amx
#define REACH ff_reach_amx
#define SWITCH ff_switch_tiles_amx
#define TRY_TILE ff_try_tile_amx
#include "amx.inc"

FF_TARGET_END
#endif
