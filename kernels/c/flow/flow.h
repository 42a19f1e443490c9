/* The flow, a calibration: operations on scratch memory with one row per input row. kernels/flow/cpu.py builds it. */
#ifndef FASTFLOW_FLOW_H
#define FASTFLOW_FLOW_H

#include "cpu.h"

enum { FF_CENTRE, FF_GATHER, FF_PRODUCT };
enum { FF_ADD = 1, FF_RELU = 2, FF_GATE = 4, FF_SPLIT = 8 };
enum { FF_ASCENDING, FF_DESCENDING, FF_SCATTERED };  /* how FF_GATHER reads a run of vectors */
enum { FF_INPUT = -1 };

typedef struct {
    int32_t kind;
    int32_t to;
    int32_t columns;  /* columns written, rounded up to whole vectors */
    int32_t weights;  /* offset into weights: m (centre), S (gather), panels (product) */
    int32_t bias;     /* offset into weights: s (centre), t (gather), start value (product) */
    int32_t source;   /* first column read, or FF_INPUT (centre); gather: offset of runs in table */
    int32_t depth;    /* product: columns read; gather: offset of indices in table, at which runs end */
    int32_t chain;    /* product: most columns in a partial sum */
    int32_t mode;     /* product: FF_ADD to the target; FF_RELU, FF_GATE of the result; FF_SPLIT: chains side by side */
} ff_op;

typedef struct {
    const float *weights;  /* 64-byte aligned */
    const ff_op *ops;
    const int32_t *table;
    int32_t count;
    int32_t inputs;
    int32_t outputs;
    int32_t result;  /* first column of z in scratch */
    int32_t stride;  /* floats in a row of scratch, a multiple of 16 */
    int32_t block;   /* rows taken through all operations at once */
    int32_t cost;    /* multiply-adds per row */
    int32_t isa;
} ff_flow;

/* x (rows, inputs) -> z (rows, keep), keep <= outputs; `normalize` divides by the L2 norm. A row's bits do not depend
   on other rows or threads. Returns -1 if memory is short. */
int ff_flow_run(const ff_flow *flow, const float *x, float *z, int64_t rows, int32_t keep, int normalize, int threads);

/* ff_flow_run in this thread, for at most flow->block rows; scratch (block, stride). */
typedef void ff_flow_body(const ff_flow *, const float *x, float *z, int rows, int keep, int normalize, float *scratch);
ff_flow_body ff_flow_portable, ff_flow_neon, ff_flow_avx2, ff_flow_avx512;

#endif
