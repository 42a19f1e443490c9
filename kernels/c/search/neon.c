#if defined(__aarch64__)
#include "search.h"
#include "vector_neon.h"

OPERATION ivec pairs(const int8x16_t a, const int8x16_t b)
{
    return (ivec){{vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), vpaddlq_s16(vmull_high_s8(a, b))}};
}

#define NAME ff_dots_neon
#define WIDE 16  /* bytes per step */
#define ZERO SET1I(0)
#define WIDEN(p) vld1q_s8(p)
#define PAIRS(a, b) pairs(a, b)
#define TOTAL(v) vaddvq_s32(vaddq_s32((v).q[0], (v).q[1]))
#include "dots.inc"

#undef NAME
#define NAME ff_products_neon
#include "floats.inc"

void ff_hammings_neon(const void *codes, const void *query, void *out, int64_t rows, int64_t width)
{
    const uint8_t *code = codes, *q = query;
    int32_t *to = out;
    for (int64_t r = 0; r < rows; r++, code += width) {
        uint32x4_t sums = vdupq_n_u32(0);
        int64_t i = 0;
        for (; i + 16 <= width; i += 16)
            sums = vpadalq_u16(sums, vpaddlq_u8(vcntq_u8(veorq_u8(vld1q_u8(code + i), vld1q_u8(q + i)))));
        int32_t sum = (int32_t)vaddvq_u32(sums);
        for (; i < width; i++)
            sum += __builtin_popcount((unsigned)(code[i] ^ q[i]));
        to[r] = sum;
    }
}

#endif
