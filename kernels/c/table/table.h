/* Texts' vectors as means of table rows. kernels/table/reference.py is the definition. */
#ifndef FASTFLOW_TABLE_H
#define FASTFLOW_TABLE_H

#include "cpu.h"

enum { FF_ROWS_FLOAT, FF_ROWS_HALF, FF_ROWS_BYTES, FF_ROWS_KINDS };  /* float32, float16, int8 */

typedef struct {
    const char *rows;         /* (count, width) numbers of kind `stored`, aligned */
    const float *scales;      /* (vocabulary) factors of rows; NULL: all 1 */
    const float *weights;     /* (vocabulary) weights in the mean; NULL: all 1 */
    const int32_t *mapping;   /* (vocabulary) row of each id; NULL: the id itself */
    int64_t count, width, vocabulary;
    int64_t run;              /* tokens in a partial sum */
    int32_t stored, isa;
} ff_table;

int ff_row_size(int stored);
/* Returns the first text with an id outside the vocabulary, else -1. ids (offsets[texts]), offsets (texts + 1). */
int64_t ff_table_check(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts);
/* out (texts, width) = means of ids[offsets[i]] ... ids[offsets[i + 1] - 1]; 0 for a text without ids. */
void ff_table_run(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts, float *out, int threads);

/* out (width) = the mean of ids (tokens), tokens >= 1. */
typedef void ff_table_body(const ff_table *, const int32_t *ids, int64_t tokens, float *out);
ff_table_body ff_table_portable, ff_table_neon, ff_table_avx2, ff_table_avx512;

#endif
