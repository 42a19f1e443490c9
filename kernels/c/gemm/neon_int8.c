/* int8 products without SDOT. Two products of at most 127 * 127 are added in 16 bits, and pairs of sums in 32 bits. */
#if defined(__aarch64__)
#include <math.h>

#include "gemm.h"
#include "vector_neon.h"

#define HALF
#define PRODUCT ff_int8_neon
#define ROWS 2  /* 16 of 32 registers hold sums, two lanes for a column */
#define ROW_SIZES(X) X(1) X(2)
#define ADD_STEPS add_byte_rows

OPERATION int8x8_t one_step(const int32_t *a) { return vreinterpret_s8_s32(vld1_dup_s32(a)); }

/* As in gemm/neon_lanes.inc; steps are even. */
OPERATION void add_byte_rows(const int R, const int NV, const int32_t *a, const ptrdiff_t lda, const float *b,
                             const ptrdiff_t ldb, int64_t steps, ivec acc[][2])
{
    int32x4_t sums[ROWS][4 * 2];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < 4 * NV; v++) sums[r][v] = vdupq_n_s32(0);
    for (; steps > 0; steps -= 2, a += 2, b += 2 * ldb)
        UNROLL for (int v = 0; v < 2 * NV; v++) {
            const int8x16_t w = vreinterpretq_s8_f32(vld1q_f32(b + 4 * v)), next = vreinterpretq_s8_f32(vld1q_f32(b + ldb + 4 * v));
            UNROLL for (int r = 0; r < R; r++) {
                const int8x8_t x = one_step(a + r * lda), y = one_step(a + r * lda + 1);
                const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(w), x), vget_low_s8(next), y);
                const int16x8_t high = vmlal_s8(vmull_s8(vget_high_s8(w), x), vget_high_s8(next), y);
                sums[r][2 * v] = vpadalq_s16(sums[r][2 * v], low);
                sums[r][2 * v + 1] = vpadalq_s16(sums[r][2 * v + 1], high);
            }
        }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < 2 * NV; v++)
            acc[r][v / 2].q[v % 2] = vpaddq_s32(sums[r][2 * v], sums[r][2 * v + 1]);
}
#include "int8.inc"

#endif
