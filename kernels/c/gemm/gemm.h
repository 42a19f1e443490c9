/* Products of rows by packed weights, y = activation(A W^T + b) or A W^T + b + add, in the formats that an instruction set
   has. packing.c packs the weights. */
#ifndef FASTFLOW_GEMM_H
#define FASTFLOW_GEMM_H

#include "cpu.h"

enum { FF_TILE_STEPS = 16 };  /* steps of a reduction in a tile of AMX */
#define FF_SPARE_ROWS 32  /* operands and results have a multiple of this many rows; what is in the spare ones is never used */

enum { FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH };
/* How a product's operands are stored. A step of the reduction is one 32-bit lane of the weights in each format. */
enum {
    FF_FLOAT,      /* float32 by float32 */
    FF_BF16,       /* bfloat16 by bfloat16, in the processor's own dot products */
    FF_BF16_WIDE,  /* float32 by bfloat16 weights widened to float32 */
    FF_INT8,       /* bytes with zero point FF_ZERO_POINT by int8 */
    FF_INT8_SIGNED, /* int8 by int8 */
    FF_INT8_TILES, /* int8 by int8, the steps of each panel filled up with zeros to a multiple of FF_TILE_STEPS */
    FF_FORMATS
};
enum { FF_ZERO_POINT = 128 };
enum { FF_APART = 8 };  /* columns of an operand of bytes that may count in float32, because they are too large for its scale */

typedef struct {      /* y = A W^T + b. Offsets are in bytes from the weights' memory, 64-byte aligned. */
    int64_t weights;  /* panels [columns / NR][steps][NR] of 32-bit lanes: 1 float, 2 bfloat16 or 4 int8 along k */
    int64_t bias;     /* float32 (columns) */
    int64_t scale;    /* int8: float32 (columns), what one unit of the weights is worth */
    int64_t shift;    /* int8: int32 (columns), minus the zero point times the sum of the column's weights */
    int64_t columns, steps, format;
    int64_t apart;    /* int8: float32 (FF_APART, columns), the weights of the operand's columns apart; below 0: there are none */
    int64_t result;   /* FF_FLOAT; with AVX-512, of products of bfloat16 and bytes, also FF_BF16: rounded */
} ff_linear;

/* Panels [from, to) of rows of `c`, from operand rows `a`; strides of `a` and `c` in bytes, of `add`, which goes with
   results of float32, in floats. */
typedef void (*ff_product)(const char *memory, const ff_linear *, const char *a, ptrdiff_t lda, int64_t rows, int64_t from,
                           int64_t to, char *c, ptrdiff_t ldc, int activation, const float *add, ptrdiff_t ldadd);
ff_product ff_product_of(int isa, int format);  /* NULL if this machine has none */
int ff_slow_dots(int isa);  /* whether the processor's dot products of bfloat16 take longer than widened weights */
void ff_switch_tiles(int isa, int on);  /* this thread's tiles, which the products of AMX need: once before a call's and once after */
/* c += a b for one tile each, int8 into int32 when `whole`, else bfloat16 into float32. Tiles must be usable. */
void ff_try_tile(int isa, int whole, const void *a, const void *b, void *c);

#define FF_DECLARE(name) \
    void name(const char *, const ff_linear *, const char *, ptrdiff_t, int64_t, int64_t, int64_t, char *, ptrdiff_t, int, \
              const float *, ptrdiff_t)
FF_DECLARE(ff_float_portable);
FF_DECLARE(ff_float_avx2);
FF_DECLARE(ff_float_avx512);
FF_DECLARE(ff_wide_portable);
FF_DECLARE(ff_wide_avx2);
FF_DECLARE(ff_wide_avx512);
FF_DECLARE(ff_bf16_avx512);
FF_DECLARE(ff_int8_portable);
FF_DECLARE(ff_int8_avx2);
FF_DECLARE(ff_int8_avx512);
FF_DECLARE(ff_int8_avxvnni);
FF_DECLARE(ff_bf16_amx);
FF_DECLARE(ff_int8_amx);
FF_DECLARE(ff_bf16_amx_emulated);
FF_DECLARE(ff_int8_amx_emulated);
void ff_switch_tiles_amx(int on);
void ff_switch_tiles_amx_emulated(int on);
void ff_try_tile_amx(int whole, const void *a, const void *b, void *c);
void ff_try_tile_amx_emulated(int whole, const void *a, const void *b, void *c);

#endif
