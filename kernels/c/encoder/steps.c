#include <string.h>

#include "encoder.h"

static float *row_of(const ff_call *c, const ff_group *g, int64_t buffer, int64_t row)
{
    return (float *)(void *)(g->at[buffer] + row * c->e->strides[buffer]);
}

/* The float32 vector at `offset` bytes in the encoder's memory; NULL if offset < 0. */
static const float *vector_at(const ff_call *c, int64_t offset)
{
    return offset < 0 ? NULL : (const float *)(c->e->memory + offset);
}

static void embed(const ff_call *c, const ff_embed_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = c->e;
    const float *scale = vector_at(c, s->scale), *bias = vector_at(c, s->bias);
    for (int64_t t = from; t < to; t++) {
        const int64_t *text = c->in->offsets + g->text + t;
        const int64_t second = c->in->seconds ? text[0] + c->in->seconds[g->text + t] : text[1];
        int32_t next = e->position_start;
        for (int64_t i = text[0]; i < text[1]; i++) {
            const int32_t id = c->in->ids[i];
            float *x = row_of(c, g, s->target, i - g->row);
            const int32_t own = (id == e->pad_id ? e->pad_id : next++) + (i < second ? 0 : e->position_rows);
            c->body->embed(e, id, s->mean ? e->position_rows : own, s->width, x);
            c->body->norm(x, x, s->width, scale, bias, e->eps);
        }
    }
}

static void multiply(const ff_call *c, const ff_linear_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = c->e;
    const ff_linear *l = e->linears + s->product;
    const float *add = s->add < 0 ? NULL : row_of(c, g, s->add, 0);
    const ff_product product = ff_find_product(e->isa, (int)l->format);
    product(e->memory, l, g->at[s->source], e->strides[s->source], s->texts ? g->texts : g->rows, from, to, g->at[s->target],
            e->strides[s->target], (int)s->activation, add, add ? e->strides[s->add] / 4 : 0);
}

static void normalise(const ff_call *c, const ff_norm_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const float *scale = vector_at(c, s->scale), *bias = vector_at(c, s->bias);
    const float eps = s->eps < 0 ? c->e->eps : *vector_at(c, s->eps);
    for (int64_t r = from; r < to; r++)
        c->body->norm(row_of(c, g, s->source, r), row_of(c, g, s->target, r), s->width, scale, bias, eps);
}

static void convert(const ff_call *c, const ff_convert_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const float *factors = vector_at(c, s->factors);
    const int32_t *apart = (const int32_t *)(const void *)vector_at(c, s->apart);
    for (int64_t r = from; r < to; r++)
        c->body->convert(row_of(c, g, s->source, r), factors, apart, s->width, (int)s->format,
                         (char *)row_of(c, g, s->target, r));
}

static void rotate(const ff_call *c, const ff_rotate_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const int64_t *text = c->in->offsets + g->text;
    for (int64_t row = from; row < to; row++) {
        while (text[1] - g->row <= row)
            text++;
        c->body->rotate(row_of(c, g, s->target, row), c->e->heads, c->e->head,
                        vector_at(c, s->table) + (row - (text[0] - g->row)) * c->e->head);
    }
}

/* Copy x (tokens, width), rows ldx floats apart, to the caller's hidden states, if wanted. `first`: x's first token in
   the call. */
static void keep_states(const ff_call *c, int64_t slot, int64_t first, int64_t tokens, const float *x, ptrdiff_t ldx, int64_t width)
{
    for (int64_t i = 0; c->in->states && i < tokens; i++)
        memcpy(c->in->states + (slot * c->in->offsets[c->in->texts] + first + i) * width, x + i * ldx,
               sizeof(float) * (size_t)width);
}

static void pool(const ff_call *c, const ff_pool_step *s, const ff_group *g, int64_t from, int64_t to, float *weights)
{
    const ptrdiff_t ld = c->e->strides[s->source] / 4;
    for (int64_t t = from; t < to; t++) {
        const int64_t *text = c->in->offsets + g->text + t;
        const float *x = row_of(c, g, s->source, text[0] - g->row);
        if (s->target < 0) {
            ff_pool(c, s, g->text + t, x, ld, weights, c->in->pooled + (g->text + t) * c->e->outputs + s->column);
        } else {
            float *row = row_of(c, g, s->target, t), *end = row + s->column + s->width;
            ff_pool(c, s, g->text + t, x, ld, weights, row + s->column);
            if (s->first)  /* zero the columns after it: padding, or written later */
                memset(end, 0, (size_t)((char *)row_of(c, g, s->target, t + 1) - (char *)end));
        }
        keep_states(c, s->slot, text[0], text[1] - text[0], x, ld, s->width);
    }
}

static void copy_first(const ff_call *c, const ff_first_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ptrdiff_t ld = c->e->strides[s->source] / 4;
    for (int64_t t = from; t < to; t++) {
        const int64_t *text = c->in->offsets + g->text + t;
        const float *x = row_of(c, g, s->source, text[0] - g->row);
        memcpy(row_of(c, g, s->target, t), x, (size_t)c->e->strides[s->target]);
        keep_states(c, s->slot, text[0], text[1] - text[0], x, ld, s->width);
    }
}

int64_t ff_step_elements(const ff_call *c, const ff_step *s, const ff_group *g)
{
    switch (s->kind) {
    case FF_LINEAR: return c->e->linears[s->linear.product].columns / (2 * ff_isa_vector(c->e->isa));
    case FF_PACK:
    case FF_ATTEND: return ff_attend_elements(c, &s->attend, g);
    case FF_NORM: return s->norm.texts ? g->texts : g->rows;
    case FF_CONVERT:
    case FF_ROTATE:
    case FF_GLU: return g->rows;
    default: return g->texts;
    }
}

void ff_run_step(const ff_call *c, const ff_step *s, const ff_group *g, int64_t from, int64_t to, float *scratch)
{
    switch (s->kind) {
    case FF_EMBED: embed(c, &s->embed, g, from, to); break;
    case FF_LINEAR: multiply(c, &s->linear, g, from, to); break;
    case FF_PACK:
    case FF_ATTEND: ff_attend(c, &s->attend, g, from, to, scratch); break;
    case FF_NORM: normalise(c, &s->norm, g, from, to); break;
    case FF_CONVERT: convert(c, &s->convert, g, from, to); break;
    case FF_ROTATE: rotate(c, &s->rotate, g, from, to); break;
    case FF_GLU:
        for (int64_t r = from; r < to; r++)
            c->body->glu(row_of(c, g, s->glu.target, r), s->glu.width, (int)s->glu.activation);
        break;
    case FF_POOL: pool(c, &s->pool, g, from, to, scratch); break;  /* attention's scratch holds the pooling weights */
    case FF_FIRST: copy_first(c, &s->first, g, from, to); break;
    case FF_UNIT:
        for (int64_t r = from; r < to; r++)
            ff_normalise_row(row_of(c, g, s->unit.target, r), s->unit.width);
        break;
    case FF_MAP:
        for (int64_t r = from; r < to; r++)
            ff_activate_row(s->map.activation, row_of(c, g, s->map.target, r), s->map.width,
                            s->map.add < 0 ? NULL : row_of(c, g, s->map.add, r));
        break;
    default:
        for (int64_t r = from; r < to; r++)
            memcpy(c->in->pooled + (g->text + r) * c->e->outputs, row_of(c, g, s->output.source, r),
                   sizeof(float) * (size_t)s->output.width);
    }
}
