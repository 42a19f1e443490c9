/* The flow in C with the compiler's vector extension: 4 floats, SSE2 on x86-64 and NEON on arm64; where not every processor
   has a fused multiply-add, a product and a sum. */
#include <math.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu.h"

#define VL 4
#define MR 4
#define SIZES(X) X(2) X(3) X(4)
#define NAME ff_flow_portable

typedef float vec __attribute__((vector_size(16)));
typedef int32_t lanes4 __attribute__((vector_size(16)));
typedef float loose __attribute__((vector_size(16), aligned(4), may_alias));

static inline vec splat(float x)
{
    return (vec){x, x, x, x};
}

static inline vec larger(vec a, vec b)
{
    const lanes4 mask = a > b;
    return (vec)(((lanes4)a & mask) | ((lanes4)b & ~mask));
}

#define LOAD(p) ((vec)*(const loose *)(p))
#define STORE(p, v) (*(loose *)(p) = (v))
#define SET1(x) splat(x)
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#if defined(__aarch64__)
#define FMA(a, b, c) ((vec)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
#define MAX(a, b) larger(a, b)
#define ROUND(a) (((a) + 12582912.0f) - 12582912.0f)  /* 1.5 * 2^23: the sum has no fraction bits */
#define POWER2(n) ((vec)((__builtin_convertvector(n, lanes4) + 127) << 23))
#define REVERSE(v) ((vec){(v)[3], (v)[2], (v)[1], (v)[0]})

#include "flow_body.inc"
