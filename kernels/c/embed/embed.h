/* WordPiece, a pooling without layers and the calibration in one call; kernels/embed/reference.py is the definition. */
#ifndef FASTFLOW_EMBED_H
#define FASTFLOW_EMBED_H

#include "encoder/encoder.h"
#include "flow/flow.h"
#include "table/table.h"
#include "tokens/tokens.h"

typedef struct {
    const ff_wordpiece *words;
    const ff_table *table;      /* the pooling: `table`, or `encoder` without layers; the other is NULL */
    const ff_encoder *encoder;
    const ff_flow *flow;
    int64_t limit;              /* most ids of a text, end ids included */
    int32_t special;            /* 1: a text gets end ids */
    int32_t left_out;           /* id that is removed after the cut; -1: none */
} ff_embedder;

enum { FF_NO_ROW = FF_HALF + 1 };  /* the pooling cannot take a text's ids */

/* Write out (many, keep), the first columns of the flow's outputs, states (many) and, unless NULL, pooled (many, inputs of
   the flow). Rows of texts of FF_HALF or FF_NO_ROW, and of their neighbours, are not written. Returns -1 if memory is
   short, else 0. */
int ff_embed(const ff_embedder *e, const ff_text *texts, int64_t many, float *out, int64_t keep, float *pooled, int8_t *states,
    int normalize, int threads);

#endif
