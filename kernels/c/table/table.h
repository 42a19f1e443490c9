/* Texts as the mean of rows of a table; ``kernels/table/reference.py`` is the definition. */
#ifndef FASTFLOW_TABLE_H
#define FASTFLOW_TABLE_H

#include "cpu.h"

enum { FF_ROWS_FLOAT, FF_ROWS_HALF, FF_ROWS_BYTES, FF_ROWS_KINDS };  /* float32, float16, int8 */

typedef struct {
    const char *rows;         /* (count, width) of the kind `stored`, aligned to its numbers */
    const float *scales;      /* (vocabulary,), or NULL: a token's vector is its row times this */
    const float *weights;     /* (vocabulary,), or NULL: its weight in the mean */
    const int32_t *mapping;   /* (vocabulary,), or NULL: the row of a token */
    int64_t count, width, vocabulary;
    int64_t run;              /* tokens that are summed before their sum is added to the text's */
    int32_t stored, isa;
} ff_table;

int ff_row_size(int stored);  /* bytes of a number */
/* The number of the first text with an id outside the vocabulary, -1 if there is none. */
int64_t ff_table_check(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts);
/* Write out (texts, width): the mean of text i is of ids[offsets[i]] to ids[offsets[i + 1] - 1], 0 if it has none. */
void ff_table_run(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts, float *out, int threads);

/* The mean of one text of at least one token. */
typedef void (*ff_table_body)(const ff_table *, const int32_t *ids, int64_t tokens, float *out);
void ff_table_portable(const ff_table *, const int32_t *, int64_t, float *);
void ff_table_avx2(const ff_table *, const int32_t *, int64_t, float *);
void ff_table_avx512(const ff_table *, const int32_t *, int64_t, float *);

#endif
