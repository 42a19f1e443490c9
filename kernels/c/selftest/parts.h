#ifndef FASTFLOW_PARTS_H
#define FASTFLOW_PARTS_H

#include <math.h>

#include "gemm/gemm.h"

enum {
    FF_TRY_FLOW, FF_TRY_TABLE, FF_TRY_SCANS, FF_TRY_ROWS,
    FF_TRY_PRODUCT,                                /* add a format */
    FF_TRY_ATTENTION = FF_TRY_PRODUCT + FF_FORMATS, /* add a format */
    FF_SELFTESTS = FF_TRY_ATTENTION + FF_FORMATS
};
enum { FF_TRY_BYTES = 1 << 16 };

typedef struct {
    int isa;
    int broken;     /* for tests: the self-test with a falsified result; -1: none */
    char *scratch;  /* (FF_TRY_BYTES) zeros, 64-byte aligned */
} ff_selftest;

/* 1: found (count) equals want (count) up to `tolerance`, absolute below 1 and relative above. */
static inline int ff_agree(const ff_selftest *t, int test, float *found, const double *want, int count, double tolerance)
{
    if (t->broken == test)
        found[count / 2] += 0.1f * (1 + fabsf(found[count / 2]));
    for (int i = 0; i < count; i++) {
        const double size = fabs(want[i]);
        if (!(fabs(found[i] - want[i]) <= tolerance * (size > 1 ? size : 1)))
            return 0;
    }
    return 1;
}

/* Number i of row `row`: a multiple of 1/8 from -3/8 to 3/8, without a short period. */
static inline double ff_try_number(int row, int i)
{
    return ((row * 5 + i * 3 + i / 7) % 7 - 3) / 8.0;
}

int ff_try_flow(const ff_selftest *);
int ff_try_table(const ff_selftest *);
int ff_try_scans(const ff_selftest *);
int ff_try_rows(const ff_selftest *);
int ff_try_product(const ff_selftest *, int format);    /* also 1 if this machine cannot run it */
int ff_try_attention(const ff_selftest *, int format);

#endif
