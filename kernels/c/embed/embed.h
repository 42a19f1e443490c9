/* Tokenizer, pooling and flow in one call, for models without transformer layers. tests/support/definitions.py is the
   definition. */
#ifndef FASTFLOW_EMBED_H
#define FASTFLOW_EMBED_H

#include "encoder/encoder.h"
#include "flow/flow.h"
#include "table/table.h"
#include "tokens/tokens.h"

typedef struct {
    const ff_tokenizer *words;
    const ff_table *table;      /* pools the ids; NULL: `encoder`, without layers, does */
    const ff_encoder *encoder;
    const ff_flow *flow;
    int64_t limit;              /* most ids of a text, including start and end ids */
    int32_t special;            /* 1: add start and end ids to each text */
    int32_t left_out;           /* id removed after the cut to `limit`; -1: none */
} ff_embedder;

enum { FF_NO_ROW = FF_FULL + 1 };  /* state of a text with ids that cannot be pooled */

/* Write out (many, keep), the first `keep` outputs of the flow; states (many); and pooled (many, flow->inputs) unless
   NULL. A state over FF_CUT leaves the text's row and some neighbouring rows unwritten. Returns -1 if
   memory is short. */
int ff_embed(const ff_embedder *e, const ff_text *texts, int64_t many, float *out, int64_t keep, float *pooled, int8_t *states,
    int normalize, int threads);

#endif
