/* Products of rows by weights in panels, y = activation(A W^T + b) or A W^T + b + add, in the formats that an instruction set
   has. packing.c packs the weights into panels. */
#ifndef FASTFLOW_GEMM_H
#define FASTFLOW_GEMM_H

#include "cpu.h"

enum { FF_TILE_STEPS = 16 };  /* steps of a reduction in a tile of AMX */
#define FF_SPARE_ROWS 32  /* operands and results have a multiple of so many rows, a block of AMX; spare rows hold any numbers */

enum { FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH };
/* How a product's operands are stored. A step of the reduction is one 32-bit lane of the weights in each format. */
enum {
    FF_FLOAT,      /* float32 by float32 */
    FF_BF16,       /* bfloat16 by bfloat16 with the processor's dot products */
    FF_BF16_WIDE,  /* float32 by bfloat16 weights widened to float32 */
    FF_INT8,       /* bytes with zero point FF_ZERO_POINT by int8 */
    FF_INT8_SIGNED, /* int8 by int8 */
    FF_INT8_TILES, /* int8 by int8, each panel filled up with steps of zeros to a multiple of FF_TILE_STEPS */
    FF_FORMATS
};
enum { FF_ZERO_POINT = 128 };  /* added to a signed byte, it gives a byte without sign */
/* Columns of an operand of bytes that may be multiplied in float32, since they are too large for its scale: with AVX-512 the
   weights of 8 columns in a panel fill half of the registers. */
enum { FF_APART = 8 };

typedef struct {      /* y = A W^T + b. Offsets are in bytes from the weights' memory, 64-byte aligned. */
    int64_t weights;  /* panels [columns / NR][steps][NR] of 32-bit lanes: 1 float, 2 bfloat16 or 4 int8 along k */
    int64_t bias;     /* float32 (columns) */
    int64_t scale;    /* int8: float32 (columns), the value of a unit of the weights */
    int64_t shift;    /* int8: int32 (columns), minus the zero point times the sum of the column's weights */
    int64_t columns, steps, format;
    int64_t apart;    /* int8: float32 (FF_APART, columns), the weights of the operand's columns apart; below 0: none */
    int64_t result;   /* FF_FLOAT, or FF_BF16 for products of bfloat16 and bytes on AVX-512: rounded results */
} ff_linear;

/* Panels [from, to) of c (rows, columns) from a (rows, steps lanes), accumulated in float32, or exactly in int32 for bytes; add
   (rows, columns) float32 or NULL, for results of float32 alone. lda and ldc are in bytes, ldadd in floats. */
typedef void (*ff_product)(const char *memory, const ff_linear *, const char *a, ptrdiff_t lda, int64_t rows, int64_t from,
                           int64_t to, char *c, ptrdiff_t ldc, int activation, const float *add, ptrdiff_t ldadd);
ff_product ff_find_product(int isa, int format);  /* NULL if this machine has none */
ff_product ff_product_of(int isa, int format);    /* selftest/usable.c: NULL too if it failed its self-test */
int ff_slow_dots(int isa);  /* whether the processor's dot products of bfloat16 take longer than widened weights */
void ff_switch_tiles(int isa, int on);  /* this thread's tiles: on before the products of a call, off after them; AMX alone has any */
/* c += a b for one tile each (16 rows of 64 bytes): with `whole` int8 accumulated in int32, else bfloat16 in float32. Tiles must
   be usable. */
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
