/* int8 products with SDOT. */
#if defined(__aarch64__)
#include <math.h>

#include "gemm.h"
#include "vector_neon.h"
FF_TARGET("arch=armv8.2-a+dotprod")

#define OPERAND int32x4_t
#define LOAD_OPERAND vld1q_s32
#define LOAD_ONE vld1q_dup_s32
#define BATCH 4
#define WEIGHT(four) const int8x16_t w = vreinterpretq_s8_f32(four)
#define BY_LANE(acc, x, i) vdotq_laneq_s32(acc, w, vreinterpretq_s8_s32(x), i)
#define ADD_ROWS add_byte_rows
#define LANE int32_t
#define ACC ivec
#include "neon_lanes.inc"

#define HALF
#define PRODUCT ff_int8_dot
#define ROWS 6  /* 24 of 32 registers hold sums */
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define ADD_STEPS add_byte_rows
#include "int8.inc"

FF_TARGET_END
#endif
