/* A plan as operations on one row's scratch, in columns of floats; kernels/flow/cpu.py builds it. */
#ifndef FASTFLOW_FLOW_H
#define FASTFLOW_FLOW_H

#include "cpu.h"

enum { FF_CENTRE, FF_GATHER, FF_PRODUCT };
enum { FF_ADD = 1, FF_RELU = 2, FF_GATE = 4, FF_SPLIT = 8 };
enum { FF_ASCENDING, FF_DESCENDING, FF_SCATTERED };  /* a gather's run of whole vectors */
enum { FF_INPUT = -1 };

typedef struct {
    int32_t kind;
    int32_t to;       /* first column that is written */
    int32_t columns;  /* written columns; whole vectors, the surplus is unused */
    int32_t weights;  /* offset into weights: m (centre), S (gather), panels (product) */
    int32_t bias;     /* offset into weights: s (centre), t (gather), start value of a product without FF_ADD */
    int32_t table;    /* offset into table: a product's parts; a gather's runs and indices; centre: column, or
                         FF_INPUT */
    int32_t parts;    /* product: number of parts (column, length, new chain); gather: offset of the indices */
    int32_t mode;     /* product: FF_ADD to the target, then FF_RELU or FF_GATE; FF_SPLIT: parts are chains */
} ff_op;

typedef struct {
    const float *weights;  /* 64-byte aligned, as is every part read by whole vectors */
    const ff_op *ops;
    const int32_t *table;
    int32_t count;   /* operations */
    int32_t inputs;  /* D */
    int32_t outputs; /* N */
    int32_t result;  /* column of z in the scratch */
    int32_t stride;  /* floats in a row's scratch, a multiple of 16 */
    int32_t block;   /* rows taken through all operations together */
    int32_t cost;    /* multiply-adds per row: sets the number of threads */
    int32_t isa;
} ff_flow;

/* x (rows, inputs) -> z (rows, keep), float32, keep <= outputs; `normalize` divides by the L2 norm. A row's bits do
   not depend on batch or threads. Returns -1 if memory is short, else 0. */
int ff_flow_run(const ff_flow *flow, const float *x, float *z, int64_t rows, int32_t keep, int normalize, int threads);

/* avx2.c ...: the same for 1 <= rows <= flow->block in this thread; scratch (block, stride). */
typedef void (*ff_flow_body)(const ff_flow *, const float *x, float *z, int rows, int keep, int normalize, float *scratch);
void ff_flow_portable(const ff_flow *, const float *, float *, int, int, int, float *);
void ff_flow_avx2(const ff_flow *, const float *, float *, int, int, int, float *);
void ff_flow_avx512(const ff_flow *, const float *, float *, int, int, int, float *);

#endif
