/* Vectors of 4 floats by the compiler's vector extension. FMA is fused only on arm64. */
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <string.h>

#include "cpu.h"
#include "scalar.h"

#define VL FF_PORTABLE_VECTOR
#define MR FF_PORTABLE_ROWS

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
#define MIN(a, b) (-larger(-(a), -(b)))
#define ROUND(a) (((a) + FF_ROUNDER) - FF_ROUNDER)
#define POWER2(n) ((vec)((__builtin_convertvector(n, lanes4) + 127) << 23))
#define REVERSE(v) ((vec){(v)[3], (v)[2], (v)[1], (v)[0]})
#define LOW(a, b) ((vec){(a)[0], (b)[0], (a)[1], (b)[1]})
#define HIGH(a, b) ((vec){(a)[2], (b)[2], (a)[3], (b)[3]})
#define PREFETCH(p) __builtin_prefetch(p)

/* As in vector_avx2.h. */
#define LOADI(p) ((lanes4)*(const loose4 *)(p))
#define STOREI(p, v) (*(loose4 *)(p) = (v))
#define SET1I(x) ((lanes4){x, x, x, x})
#define ADDI(a, b) ((a) + (b))
#define TO_FLOAT(a) __builtin_convertvector(a, vec)
#define LOWER(w) ((vec)((w) << 16))
#define UPPER(w) ((vec)((w) & SET1I(-65536)))
typedef int32_t loose4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef lanes4 ivec;

/* WIDEN_HALF(p): 4 IEEE halves -> floats, subnormals as in encoder/body.inc. */
typedef uint16_t halves4 __attribute__((vector_size(8)));

static inline vec widen_half(const void *p)
{
    halves4 read;
    memcpy(&read, p, sizeof read);
    const lanes4 h = __builtin_convertvector(read, lanes4), digits = h & SET1I(0x7fff);
    const lanes4 beyond = digits > SET1I(0x7bff), below = digits < SET1I(0x400);
    const lanes4 normal = (digits << 13) + SET1I(112 << 23) + (beyond & SET1I(112 << 23));
    const lanes4 small = (lanes4)MUL(TO_FLOAT(digits), SET1(0x1p-24f));
    return (vec)((below & small) | (~below & normal) | ((h & SET1I(0x8000)) << 16));
}
#define WIDEN_HALF(p) widen_half(p)
