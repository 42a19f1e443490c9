/* Products of amx.c with emulated tiles and the same bits, for tests. */
#include "gemm.h"

#if FF_HAS_AMX
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mxcsr.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES)

#define EMULATED
#define BF16 ff_bf16_amx_emulated
#define INT8 ff_int8_amx_emulated
#define REACH ff_reach_amx_emulated
#define SWITCH ff_switch_tiles_amx_emulated
#define TRY_TILE ff_try_tile_amx_emulated
#include "amx.inc"

__thread ff_amx_state ff_amx;

FF_TARGET_END
#endif
