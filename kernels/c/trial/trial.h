/* Trials: what the bodies of an instruction set compute of a few numbers, against the same sums in double, once a process and
   before their first use. A hypervisor, an emulator, a compiler or a core may be wrong without any error. */
#ifndef FASTFLOW_TRIAL_H
#define FASTFLOW_TRIAL_H

#include <math.h>

#include "gemm/gemm.h"

enum {
    FF_TRY_FLOW, FF_TRY_TABLE, FF_TRY_SCANS, FF_TRY_ROWS,
    FF_TRY_PRODUCT,                                /* + format */
    FF_TRY_ATTENTION = FF_TRY_PRODUCT + FF_FORMATS, /* + format */
    FF_TRIALS = FF_TRY_ATTENTION + FF_FORMATS
};
enum { FF_TRY_BYTES = 1 << 16 };  /* of scratch for a trial */

typedef struct {
    int isa;
    int broken;     /* a trial whose results are changed before they are compared, for tests; -1: none */
    char *scratch;  /* FF_TRY_BYTES, 64-byte aligned, zeros */
} ff_trial;

/* The trials, as bits, in which `isa` is wrong: one answer a process. 0 if this machine does not have it, or no memory. AMX,
   which is AVX-512 but for products, has no other trials than those of products and attention. */
uint32_t ff_wrong(int isa);
uint32_t ff_wrong_so_far(int isa);  /* the same without a trial: 0 if there was none yet */
/* The same of a new trial, whose results in `broken` are changed; with `keep` it is the answer of the process from now on. */
uint32_t ff_try(int isa, int broken, int keep);
const char *ff_trial_name(int trial);  /* what is tried, in words */

/* Whether found (count) is want (count) up to `tolerance`, absolute below 1 and relative above. */
static inline int ff_agree(const ff_trial *t, int trial, float *found, const double *want, int count, double tolerance)
{
    if (t->broken == trial)
        found[count / 2] += 0.1f * (1 + fabsf(found[count / 2]));
    for (int i = 0; i < count; i++) {
        const double size = fabs(want[i]);
        if (!(fabs(found[i] - want[i]) <= tolerance * (size > 1 ? size : 1)))
            return 0;
    }
    return 1;
}

/* Number `i` of a sequence of multiples of 1/8 from -3/8 to 3/8, without a short period in i or in `row`. */
static inline double ff_try_number(int row, int i)
{
    return ((row * 5 + i * 3 + i / 7) % 7 - 3) / 8.0;
}

int ff_try_flow(const ff_trial *);
int ff_try_table(const ff_trial *);
int ff_try_scans(const ff_trial *);
int ff_try_rows(const ff_trial *);
int ff_try_product(const ff_trial *, int format);    /* 1 too if there is none */
int ff_try_attention(const ff_trial *, int format);  /* 1 too if there is none */

#endif
