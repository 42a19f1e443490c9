/* Texts to embeddings in one call: WordPiece, a pooling without layers, the folded calibration, with the bits of the
   separate kernels. kernels/embed/reference.py is the definition. */
#ifndef FASTFLOW_EMBED_H
#define FASTFLOW_EMBED_H

#include "encoder/encoder.h"
#include "flow/flow.h"
#include "table/table.h"
#include "tokens/tokens.h"

typedef struct {
    const ff_wordpiece *words;
    const ff_table *table;      /* the pooling: this, or an encoder without layers; the other is NULL */
    const ff_encoder *encoder;
    const ff_flow *flow;
    int64_t limit;              /* the most ids of a text, including its end ids if `special` */
    int32_t special;            /* 1: a text gets end ids */
    int32_t left_out;           /* id that is removed after the cut; -1: none */
} ff_embedder;

enum { FF_NO_ROW = FF_HALF + 1 };  /* further state of a text: the pooling cannot take its ids */

/* Write out (many, outputs of the flow), float32 sums; states (many); and, unless NULL, pooled (many, inputs of the
   flow). Rows of texts of FF_HALF or FF_NO_ROW, and of their neighbours, are not written. A text's bits do not
   depend on neighbours or threads. Returns -1 if memory is short, else 0. */
int ff_embed(const ff_embedder *e, const ff_text *texts, int64_t many, float *out, float *pooled, int8_t *states, int normalize,
    int threads);

#endif
