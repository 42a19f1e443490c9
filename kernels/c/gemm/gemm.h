/* Products y = activation(A W^T + b) or A W^T + b + add with packed weights. Words used here:

     panel   NR = 2 VL adjacent output columns of W^T, stored together: [steps][NR] lanes, or [steps / 2][NR][2] for
             matrix instructions
     step    one 32-bit lane along the summed dimension: 1 float32, 2 bfloat16 or 4 int8
     tile    a few operand rows times a panel, summed in registers */
#ifndef FASTFLOW_GEMM_H
#define FASTFLOW_GEMM_H

#include "cpu.h"

enum { FF_TILE_STEPS = 16 };  /* steps in an AMX tile */
#define FF_SPARE_ROWS 32  /* buffers are padded to a multiple of these rows, with arbitrary numbers */

enum { FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH };
enum {
    FF_FLOAT,      /* float32 operand and weights */
    FF_BF16,       /* bfloat16 operand and weights, by dot-product instructions */
    FF_BF16_WIDE,  /* float32 operand, bfloat16 weights widened to float32 */
    FF_INT8,       /* unsigned operand bytes (int8 + FF_ZERO_POINT), int8 weights */
    FF_INT8_SIGNED, /* int8 operand and weights */
    FF_INT8_TILES, /* int8 in AMX tiles: zeros pad panels to whole tiles */
    FF_FORMATS
};
enum { FF_ZERO_POINT = 128 };
/* Outlier columns, which int8 products multiply in float32. */
enum { FF_APART = 8 };

typedef struct {      /* byte offsets into the encoder's memory, 64-byte aligned */
    int64_t weights;  /* panels (columns / NR) of 32-bit lanes */
    int64_t bias;     /* float32 (columns) */
    int64_t scale;    /* int8: float32 (columns), the value of a weight's unit */
    int64_t shift;    /* int8: int32 (columns), -zero point * sum of the column's weights */
    int64_t columns, steps, format;
    int64_t apart;    /* int8: float32 (FF_APART, columns), weights of outlier columns; < 0: none */
    int64_t result;   /* FF_FLOAT or FF_BF16 */
} ff_linear;

/* Write panels [from, to) of c (rows, columns; rows ldc bytes apart) from a (rows, steps; rows lda bytes apart). add
   (rows, columns; rows ldadd floats apart), or NULL. */
typedef void ff_multiply(const char *memory, const ff_linear *, const char *a, ptrdiff_t lda, int64_t rows, int64_t from,
                         int64_t to, char *c, ptrdiff_t ldc, int activation, const float *add, ptrdiff_t ldadd);
typedef ff_multiply *ff_product;
ff_product ff_find_product(int isa, int format);  /* NULL: this machine cannot run it */
ff_product ff_product_of(int isa, int format);    /* as ff_find_product; NULL also if its self-test failed */
int ff_slow_dots(int isa);  /* 1: FF_BF16_WIDE is faster than FF_BF16 */
void ff_switch_tiles(int isa, int on);  /* configure this thread's AMX tiles, or release them */
/* c += a b for tiles of (16, 64) bytes: int8 in int32 if `whole`, else bfloat16 in float32. */
void ff_try_tile(int isa, int whole, const void *a, const void *b, void *c);

/* Set a bit of hits (rows) for each column if its product with the row, scaled, plus its slack, is at least the row's
   least; return 0 if no bit is set. a (32, steps tiles; rows lda bytes apart), of which `rows` count; b: a panel;
   scale, least (rows); others, slack (32): scale and slack of columns. */
typedef uint32_t ff_reach(const char *a, ptrdiff_t lda, const char *b, int64_t steps, int64_t rows, const float *scale,
                          const float *least, const float *others, const float *slack, uint32_t *hits);
ff_reach ff_reach_amx, ff_reach_amx_emulated;

int ff_steps_together(int isa, int format);  /* adjacent steps of a column in a panel */

ff_multiply ff_float_portable, ff_float_neon, ff_wide_neon, ff_int8_neon, ff_int8_dot, ff_int8_mm, ff_bf16_mm, ff_float_avx2, ff_float_avx512, ff_wide_portable, ff_wide_avx2, ff_wide_avx512, ff_bf16_avx512,
    ff_int8_portable, ff_int8_avx2, ff_int8_avx512, ff_int8_avxvnni, ff_bf16_amx, ff_int8_amx, ff_bf16_amx_emulated,
    ff_int8_amx_emulated;
void ff_switch_tiles_amx(int on);
void ff_switch_tiles_amx_emulated(int on);
void ff_try_tile_amx(int whole, const void *a, const void *b, void *c);
void ff_try_tile_amx_emulated(int whole, const void *a, const void *b, void *c);

#endif
