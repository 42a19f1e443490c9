/* y = activation(A W^T + b) or A W^T + b + add, of packed weights (packing.c). */
#ifndef FASTFLOW_GEMM_H
#define FASTFLOW_GEMM_H

#include "cpu.h"

enum { FF_TILE_STEPS = 16 };  /* steps of a reduction in an AMX tile */
#define FF_SPARE_ROWS 32  /* rows are padded to this, an AMX block, with arbitrary numbers */

enum { FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH };
/* A step of the reduction is one 32-bit lane of the weights. */
enum {
    FF_FLOAT,      /* float32 by float32 */
    FF_BF16,       /* bfloat16 by bfloat16 with the processor's dot products */
    FF_BF16_WIDE,  /* float32 by bfloat16 weights widened to float32 */
    FF_INT8,       /* bytes with zero point FF_ZERO_POINT by int8 */
    FF_INT8_SIGNED, /* int8 by int8 */
    FF_INT8_TILES, /* int8 by int8, panels padded with zero steps to a multiple of FF_TILE_STEPS */
    FF_FORMATS
};
enum { FF_ZERO_POINT = 128 };  /* a signed byte plus this is an unsigned byte */
/* Operand columns too large for a byte scale, multiplied in float32: 8 fill half of AVX-512's registers. */
enum { FF_APART = 8 };

typedef struct {      /* y = A W^T + b. Offsets are in bytes from the weights' memory, 64-byte aligned. */
    int64_t weights;  /* panels [columns / NR][steps][NR] of 32-bit lanes: 1 float, 2 bfloat16 or 4 int8 along k */
    int64_t bias;     /* float32 (columns) */
    int64_t scale;    /* int8: float32 (columns), the value of a weight unit */
    int64_t shift;    /* int8: int32 (columns), -zero point times the column's sum */
    int64_t columns, steps, format;
    int64_t apart;    /* int8: float32 (FF_APART, columns), weights of the columns apart; < 0: none */
    int64_t result;   /* FF_FLOAT, or, on AVX-512 for bfloat16 and bytes, FF_BF16 */
} ff_linear;

/* Panels [from, to) of c (rows, columns) from a (rows, steps lanes), in float32 or int32; add (rows, columns)
   float32 or NULL, for float32 results. lda and ldc are bytes, ldadd floats. */
typedef void (*ff_product)(const char *memory, const ff_linear *, const char *a, ptrdiff_t lda, int64_t rows, int64_t from,
                           int64_t to, char *c, ptrdiff_t ldc, int activation, const float *add, ptrdiff_t ldadd);
ff_product ff_find_product(int isa, int format);  /* NULL if this machine has none */
ff_product ff_product_of(int isa, int format);    /* selftest/usable.c: also NULL if it failed its self-test */
int ff_slow_dots(int isa);  /* 1: bfloat16 dot products are slower than widened weights */
void ff_switch_tiles(int isa, int on);  /* this thread's AMX tiles: on before a call's products, off after */
/* c += a b for tiles of 16 rows of 64 bytes: int8 if `whole`, else bfloat16. */
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
