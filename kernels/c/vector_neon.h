/* Vectors of 8 floats: two registers of arm64. Include before FF_TARGET. */
#include <arm_neon.h>

#include "cpu.h"
#include "target.h"

#define VL FF_NEON_VECTOR
#define MR FF_NEON_ROWS
typedef struct { float32x4_t q[2]; } vec;
typedef struct { int32x4_t q[2]; } ivec;

#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")  /* early loads need more registers than there are */
#endif
#define UNROLL _Pragma("GCC unroll 32")
#define OPERATION static inline __attribute__((always_inline))
#define UNARY(name, type, f) OPERATION type name(const type a) { return (type){{f(a.q[0]), f(a.q[1])}}; }
#define BINARY(name, type, f) \
    OPERATION type name(const type a, const type b) { return (type){{f(a.q[0], b.q[0]), f(a.q[1], b.q[1])}}; }

BINARY(ADD, vec, vaddq_f32)
BINARY(SUB, vec, vsubq_f32)
BINARY(MUL, vec, vmulq_f32)
BINARY(DIV, vec, vdivq_f32)
BINARY(MAX, vec, vmaxnmq_f32)
BINARY(MIN, vec, vminnmq_f32)
UNARY(ROUND, vec, vrndnq_f32)
BINARY(ADDI, ivec, vaddq_s32)
#define SET1(x) ((vec){{vdupq_n_f32(x), vdupq_n_f32(x)}})
#define SET1I(x) ((ivec){{vdupq_n_s32(x), vdupq_n_s32(x)}})
#define PREFETCH(p) (void)(p)  /* processors prefetch a stream of weights */

OPERATION vec LOAD(const float *p) { return (vec){{vld1q_f32(p), vld1q_f32(p + 4)}}; }

OPERATION void STORE(float *p, const vec v)
{
    vst1q_f32(p, v.q[0]);
    vst1q_f32(p + 4, v.q[1]);
}

OPERATION vec FMA(const vec a, const vec b, const vec c)
{
    return (vec){{vfmaq_f32(c.q[0], a.q[0], b.q[0]), vfmaq_f32(c.q[1], a.q[1], b.q[1])}};
}

OPERATION float32x4_t power2(const float32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
UNARY(POWER2, vec, power2)
#define SCALE(v, n) MUL(v, POWER2(n))
#define LARGEST(v) vmaxnmvq_f32(vmaxnmq_f32((v).q[0], (v).q[1]))

OPERATION float32x4_t reverse(const float32x4_t v)
{
    const float32x4_t pairs = vrev64q_f32(v);
    return vextq_f32(pairs, pairs, 2);
}
#define REVERSE(v) reverse_both(v)
OPERATION vec reverse_both(const vec v) { return (vec){{reverse(v.q[1]), reverse(v.q[0])}}; }
OPERATION vec LOW(const vec a, const vec b) { return (vec){{vzip1q_f32(a.q[0], b.q[0]), vzip2q_f32(a.q[0], b.q[0])}}; }
OPERATION vec HIGH(const vec a, const vec b) { return (vec){{vzip1q_f32(a.q[1], b.q[1]), vzip2q_f32(a.q[1], b.q[1])}}; }

/* As in vector_avx2.h. */
OPERATION ivec LOADI(const void *p) { return (ivec){{vld1q_s32((const int32_t *)p), vld1q_s32((const int32_t *)p + 4)}}; }

OPERATION void STOREI(void *p, const ivec v)
{
    vst1q_s32((int32_t *)p, v.q[0]);
    vst1q_s32((int32_t *)p + 4, v.q[1]);
}

OPERATION vec TO_FLOAT(const ivec v) { return (vec){{vcvtq_f32_s32(v.q[0]), vcvtq_f32_s32(v.q[1])}}; }
#define LOWER4(w) vreinterpretq_f32_s32(vshlq_n_s32(w, 16))
#define UPPER4(w) vreinterpretq_f32_s32(vandq_s32(w, vdupq_n_s32(-65536)))

/* As in vector_avx512.h. */
#define BITS(v) ((ivec){{vreinterpretq_s32_f32((v).q[0]), vreinterpretq_s32_f32((v).q[1])}})

OPERATION vec WIDEN_HALF(const void *p)
{
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)p));
    return (vec){{vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)}};
}

OPERATION void STORE_BYTES(void *p, const ivec v)
{
    vst1_s8((int8_t *)p, vmovn_s16(vcombine_s16(vmovn_s32(v.q[0]), vmovn_s32(v.q[1]))));
}

/* Round to bfloat16, ties to even. STORE_HALF: 16 numbers. */
OPERATION uint16x4_t half_of(const float32x4_t v)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}

OPERATION void STORE_HALF(void *p, const vec low, const vec high)
{
    vst1q_u16((uint16_t *)p, vcombine_u16(half_of(low.q[0]), half_of(low.q[1])));
    vst1q_u16((uint16_t *)p + 8, vcombine_u16(half_of(high.q[0]), half_of(high.q[1])));
}
#define STORE_HALF STORE_HALF

/* take_pair: read 8 weights at *b and advance *b. KEEP_POINTER hides addresses from GCC, which would compute each of
   them; clang finds the loads of two registers. */
#if defined(__clang__)
#define KEEP_POINTER(p) (void)(p)
#define LOAD_STREAM LOAD
#else
#define KEEP_POINTER(p) __asm__("" : "+r"(p))
OPERATION vec LOAD_STREAM(const float *p)
{
    const float32x4x2_t both = vld1q_f32_x2(p);
    return (vec){{both.val[0], both.val[1]}};
}
#endif
OPERATION vec take_pair(const float **b)
{
    const vec taken = LOAD_STREAM(*b);
    *b += VL;
    KEEP_POINTER(*b);
    return taken;
}

/* add_rows: for float32 products and flows. */
#define OPERAND float32x4_t
#define LOAD_OPERAND vld1q_f32
#define LOAD_ONE vld1q_dup_f32
#define BATCH 4
#define WEIGHT(four) const float32x4_t w = four
#define BY_LANE(acc, x, i) vfmaq_laneq_f32(acc, w, x, i)
#define ADD_ROWS add_rows
#define LANE float
#define ACC vec
#include "gemm/neon_lanes.inc"
