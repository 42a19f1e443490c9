/* Texts as means of a table's rows; kernels/table/reference.py is the definition. */
#ifndef FASTFLOW_TABLE_H
#define FASTFLOW_TABLE_H

#include "cpu.h"

enum { FF_ROWS_FLOAT, FF_ROWS_HALF, FF_ROWS_BYTES, FF_ROWS_KINDS };  /* float32, float16, int8 */

typedef struct {
    const char *rows;         /* (count, width) of kind `stored`, aligned to its numbers */
    const float *scales;      /* (vocabulary) factors of rows; NULL: 1 */
    const float *weights;     /* (vocabulary) weights in the mean; NULL: 1 */
    const int32_t *mapping;   /* (vocabulary) rows of tokens; NULL: the ids */
    int64_t count, width, vocabulary;
    int64_t run;              /* tokens summed before their sum is added */
    int32_t stored, isa;
} ff_table;

int ff_row_size(int stored);  /* bytes of a number */
/* The first text with an id outside the vocabulary, -1 if none; ids (offsets[texts]), offsets (texts + 1). */
int64_t ff_table_check(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts);
/* Write out (texts, width): means of ids[offsets[i]] to ids[offsets[i + 1] - 1], 0 if a text has none. */
void ff_table_run(const ff_table *, const int32_t *ids, const int64_t *offsets, int64_t texts, float *out, int threads);

/* The mean out (width) of ids (tokens), at least one. */
typedef void (*ff_table_body)(const ff_table *, const int32_t *ids, int64_t tokens, float *out);
void ff_table_portable(const ff_table *, const int32_t *, int64_t, float *);
void ff_table_avx2(const ff_table *, const int32_t *, int64_t, float *);
void ff_table_avx512(const ff_table *, const int32_t *, int64_t, float *);

#endif
