/* Texts to embeddings in one call: WordPiece, a pooling without layers, the folded calibration. Each is that of its own
   folder, so the numbers are too; kernels/embed/reference.py is the definition. */
#ifndef FASTFLOW_EMBED_H
#define FASTFLOW_EMBED_H

#include "encoder/encoder.h"
#include "flow/flow.h"
#include "table/table.h"
#include "tokens/tokens.h"

typedef struct {
    const ff_wordpiece *words;
    const ff_table *table;      /* the pooling: this, or an encoder that computes no layer; the other is NULL */
    const ff_encoder *encoder;
    const ff_flow *flow;        /* its inputs are the width of the pooling */
    int64_t limit;              /* ids of a text, those at its ends counted if `special` */
    int32_t special;            /* 1: a text gets the ids at its ends */
    int32_t left_out;           /* the id that is left out of a text after the cut; -1: none */
} ff_embedder;

enum { FF_NO_ROW = FF_HALF + 1 };  /* a state of a text besides those of ff_tokenize: the pooling cannot take its ids */

/* texts (many), out (many, keep), the first columns of the flow's outputs; pooled (many, inputs of the flow), or NULL;
   states (many). The row of a text of FF_HALF or FF_NO_ROW, and the rows of its neighbours, are not written. A text has
   the same bits whatever its neighbours and the threads. Returns -1 if memory is short, else 0. */
int ff_embed(const ff_embedder *e, const ff_text *texts, int64_t many, float *out, int64_t keep, float *pooled, int8_t *states,
    int normalize, int threads);

#endif
