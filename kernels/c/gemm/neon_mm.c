/* Products with the matrix instructions of bfloat16 (BFMMLA) and int8 (SMMLA). */
#if defined(__aarch64__)
#include <math.h>

#include "gemm.h"
#include "vector_neon.h"
FF_TARGET("arch=armv8.2-a+bf16+i8mm")

/* Read 16 weights at *b and advance *b. */
OPERATION float32x4x4_t take_weights(const float **b)
{
#if defined(__clang__)
    const float32x4x4_t taken = {{vld1q_f32(*b), vld1q_f32(*b + 4), vld1q_f32(*b + 8), vld1q_f32(*b + 12)}};
#else
    const float32x4x4_t taken = vld1q_f32_x4(*b);
#endif
    *b += 16;
    KEEP_POINTER(*b);
    return taken;
}

/* Steps `step` and the next (0 or 2) of rows a and b. clang has registers left for four steps. */
OPERATION int64x2_t pair_of(const int32_t *a, const int32_t *b, const int step)
{
#if defined(__clang__)
    const int64x2_t one = vreinterpretq_s64_s32(vld1q_s32(a)), two = vreinterpretq_s64_s32(vld1q_s32(b));
    return step ? vzip2q_s64(one, two) : vzip1q_s64(one, two);
#else
    return vcombine_s64(vreinterpret_s64_s32(vld1_s32(a + step)), vreinterpret_s64_s32(vld1_s32(b + step)));
#endif
}

#define ADD_ROWS add_half_rows
#define ACC vec
#define SUMS float32x4_t
#define MULTIPLY_PAIRS(acc, x, w) vbfmmlaq_f32(acc, vreinterpretq_bf16_s64(x), vreinterpretq_bf16_f32(w))
#define TO_SUMS vreinterpretq_f32_s64
#define OF_SUMS vreinterpretq_s64_f32
#include "neon_pairs.inc"

#define ADD_ROWS add_byte_rows
#define ACC ivec
#define SUMS int32x4_t
#define MULTIPLY_PAIRS(acc, x, w) vmmlaq_s32(acc, vreinterpretq_s8_s64(x), vreinterpretq_s8_f32(w))
#define TO_SUMS vreinterpretq_s32_s64
#define OF_SUMS vreinterpretq_s64_s32
#include "neon_pairs.inc"

OPERATION bfloat16x8_t to_halves(const vec v) { return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(v.q[0]), v.q[1]); }

#undef STORE_HALF
#define STORE_HALF(p, low, high) \
    vst1q_bf16((bfloat16_t *)(void *)(p), to_halves(low)), vst1q_bf16((bfloat16_t *)(void *)(p) + 8, to_halves(high))
/* Tiles have whole pairs of rows. */
#define EVEN_BEGIN(t) ((t) == count ? here : (t) * ((here + 1) / 2) / count * 2)
#define TILE_BEGIN EVEN_BEGIN

#define HALF
#define PRODUCT ff_int8_mm
#define ROWS 6  /* 24 of 32 registers hold sums */
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define ADD_STEPS add_byte_rows
#include "int8.inc"

#if !defined(__clang__)
#pragma GCC optimize("ira-algorithm=priority")  /* else sums are spilled */
#endif
#define NAME(x) x##_bf16
#define PRODUCT ff_bf16_mm
#define ROWS 6
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define LANE int32_t
#define PER_STEP 1
#define ACC vec
#define ZERO SET1(0)
#define TILE_BEGIN EVEN_BEGIN
#define LOAD_ACC LOAD
#define STORE_ACC STORE
#define ADD_ACC ADD
#define ADD_STEPS add_half_rows
#include "body.inc"

FF_TARGET_END
#endif
