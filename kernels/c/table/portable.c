/* The mean of rows in C with the compiler's vector extension. */
#include "scalar.h"
#include "table.h"
#include "vector_portable.h"

/* IEEE half to float. Subnormal halves become normal floats as integers: the processor reads subnormal floats as zero. */
static inline float widen(uint16_t half)
{
    const uint32_t digits = half & 0x7fff;
    const uint32_t exponent = digits < 0x7c00 ? 112u << 23 : 224u << 23;
    const float wide = digits < 0x400 ? (float)(int32_t)digits * 0x1p-24f : ff_of_bits((digits << 13) + exponent);
    return half & 0x8000 ? -wide : wide;
}

static inline vec widen_half(const char *p)
{
    uint16_t h[VL];
    memcpy(h, p, sizeof h);
    return (vec){widen(h[0]), widen(h[1]), widen(h[2]), widen(h[3])};
}

static inline vec widen_bytes(const char *p)
{
    const signed char *b = (const signed char *)p;
    return (vec){b[0], b[1], b[2], b[3]};
}

#define BODY ff_table_portable
#define WIDEN_HALF(p) widen_half(p)
#define WIDEN_BYTES(p) widen_bytes(p)
#include "body.inc"
