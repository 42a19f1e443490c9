/* The steps of an encoder, each on a range of its elements. */
#include <string.h>

#include "encoder.h"

static void embed(const ff_call *c, const ff_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = c->e;
    for (int64_t t = from; t < to; t++) {
        const int64_t *at = c->in->offsets + g->text + t;
        int32_t next = e->position_start;
        for (int64_t i = at[0]; i < at[1]; i++) {
            const int32_t id = c->in->ids[i];
            float *x = (float *)(g->at[s->to] + (i - g->row) * e->strides[s->to]);
            c->body->embed(e, id, id == e->pad_id ? e->pad_id : next++, s->width, x);
            c->body->norm(x, x, s->width, (const float *)(e->memory + s->scale), (const float *)(e->memory + s->bias), e->eps);
        }
    }
}

static void pool(const ff_call *c, const ff_step *s, const ff_group *g, int64_t from, int64_t to, float *weights)
{
    const ff_encoder *e = c->e;
    const ptrdiff_t ld = e->strides[s->from] / 4;
    const size_t bytes = sizeof(float) * (size_t)s->width;
    for (int64_t t = from; t < to; t++) {
        const int64_t *at = c->in->offsets + g->text + t;
        const float *x = (const float *)g->at[s->from] + (at[0] - g->row) * ld;
        float *pooled = c->in->pooled + (g->text + t) * e->outputs + s->column;
        if (s->kind == FF_FIRST && s->to >= 0)
            memcpy(g->at[s->to] + t * e->strides[s->to], x, (size_t)e->strides[s->to]);
        else if (s->kind == FF_FIRST)
            memcpy(pooled, s->texts ? (const float *)g->at[s->from] + t * ld : x, bytes);
        else if (s->to < 0)
            ff_pool(e, c->in, s, g->text + t, x, ld, weights, pooled);
        else {
            float *row = (float *)(g->at[s->to] + t * e->strides[s->to]), *end = row + s->column + s->width;
            ff_pool(e, c->in, s, g->text + t, x, ld, weights, row + s->column);
            if (s->linear)  /* set for the first time: the columns after are written later, or are padding */
                memset(end, 0, (size_t)((char *)(row + e->strides[s->to] / 4) - (char *)end));
        }
        for (int64_t i = at[0]; c->in->states && !s->texts && i < at[1]; i++)
            memcpy(c->in->states + (s->slot * c->in->offsets[c->in->texts] + i) * s->width, x + (i - at[0]) * ld, bytes);
    }
}

static void rotate(const ff_call *c, const ff_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = c->e;
    const int64_t *at = c->in->offsets + g->text;
    for (int64_t row = from; row < to; row++) {
        while (at[1] - g->row <= row)
            at++;
        c->body->rotate((float *)(g->at[s->from] + row * e->strides[s->from]), e->heads, e->head,
                        (const float *)(e->memory + s->scale) + (row - (at[0] - g->row)) * e->head);
    }
}

int64_t ff_elements(const ff_call *c, const ff_step *s, const ff_group *g)
{
    switch (s->kind) {
    case FF_LINEAR: return c->e->linears[s->linear].columns / (2 * ff_isa_vector(c->e->isa));
    case FF_PACK:
    case FF_ATTEND: return ff_attend_elements(c->e, s, c->in, g);
    case FF_NORM:
    case FF_ROTATE:
    case FF_GLU:
    case FF_CONVERT: return s->texts ? g->texts : g->rows;
    default: return g->texts;
    }
}

void ff_part(const ff_call *c, const ff_step *s, const ff_group *g, int64_t from, int64_t to, float *scratch)
{
    const ff_encoder *e = c->e;
    const ptrdiff_t lda = s->from < 0 ? 0 : e->strides[s->from], ldc = s->to < 0 ? 0 : e->strides[s->to];
    switch (s->kind) {
    case FF_EMBED: embed(c, s, g, from, to); break;
    case FF_LINEAR: {
        const ff_linear *l = e->linears + s->linear;
        const float *add = s->add < 0 ? NULL : (const float *)g->at[s->add];
        ff_product_of(e->isa, (int)l->format)(e->memory, l, g->at[s->from], lda, s->texts ? g->texts : g->rows, from, to,
                                              g->at[s->to], ldc, (int)s->activation, add, add ? e->strides[s->add] / 4 : 0);
        break;
    }
    case FF_PACK:
    case FF_ATTEND: ff_attend(e, s, c->in, g, from, to, scratch); break;
    case FF_NORM:
        for (int64_t r = from; r < to; r++)
            c->body->norm((const float *)(g->at[s->from] + r * lda), (float *)(g->at[s->to] + r * ldc), s->width,
                          (const float *)(e->memory + s->scale), (const float *)(e->memory + s->bias),
                          s->number < 0 ? e->eps : *(const float *)(e->memory + s->number));
        break;
    case FF_UNIT:
        for (int64_t r = from; r < to; r++)
            ff_unit((float *)(g->at[s->to] + r * ldc), s->width);
        break;
    case FF_MAP:
        for (int64_t r = from; r < to; r++)
            ff_map(s->activation, (float *)(g->at[s->to] + r * ldc), s->width,
                   s->add < 0 ? NULL : (const float *)(g->at[s->add] + r * e->strides[s->add]));
        break;
    case FF_CONVERT:
        for (int64_t r = from; r < to; r++)
            c->body->convert((const float *)(g->at[s->from] + r * lda),
                             s->table < 0 ? NULL : (const float *)(e->memory + s->table),
                             s->apart < 0 ? NULL : (const int32_t *)(const void *)(e->memory + s->apart), s->width, (int)s->format,
                             g->at[s->to] + r * ldc);
        break;
    case FF_ROTATE: rotate(c, s, g, from, to); break;
    case FF_GLU:
        for (int64_t r = from; r < to; r++)
            c->body->glu((float *)(g->at[s->from] + r * lda), s->width, (int)s->activation);
        break;
    default: pool(c, s, g, from, to, scratch);  /* attention's has room for a number a token */
    }
}
