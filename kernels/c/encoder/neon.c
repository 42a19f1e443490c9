#if defined(__aarch64__)
#include <math.h>
#include <string.h>

#include "encoder.h"
#include "vector_neon.h"

OPERATION float32x4_t load_pair(const float *p) { return vcombine_f32(vld1_f32(p), vdup_n_f32(0)); }

#define OPERAND float32x4_t
#define LOAD_OPERAND vld1q_f32
#define LOAD_ONE load_pair
#define BATCH 2
#define WEIGHT(four) \
    const int32x4_t w = vreinterpretq_s32_f32(four); \
    const float32x4_t even = LOWER4(w), odd = UPPER4(w)
#define BY_LANE(acc, x, i) vfmaq_laneq_f32(vfmaq_laneq_f32(acc, even, x, 2 * (i)), odd, x, 2 * (i) + 1)
#define ADD_ROWS add_wide_rows
#define LANE float
#define ACC vec
#include "gemm/neon_lanes.inc"

#define BODY ff_body_neon
#define ATTENTION ff_attention_neon
#define FLOAT ff_float_neon
#define WIDE ff_wide_neon
#define SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define WIDE_MR 5  /* 20 of 32 registers hold sums */
#define WIDE_SIZES(X) X(1) X(2) X(3) X(4) X(5)
#define ADD_FLOATS add_rows
#define ADD_WIDE add_wide_rows

#include "body.inc"

#endif
