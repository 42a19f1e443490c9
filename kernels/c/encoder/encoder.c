/* Takes packed texts through the encoder's steps. Two ways to share the work, with the same bits:
   alone: a thread takes a group of neighbouring texts through all steps, without waiting for anyone;
   together: all threads do one step of one group after the other, each a share of its panels, heads or rows. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"
#include "mxcsr.h"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#define TOGETHER_ROWS 512
#define SPINS 2000
#define WORTH_A_THREAD 2000000  /* steps of products by columns: some ten times what it takes to wake one */

typedef struct {  /* one step of one group, shared by threads; a cache line each */
    _Atomic int64_t next, done;
    char line[48];
} phase;
_Static_assert(sizeof(phase) == 64, "a phase fills a cache line");

typedef struct {
    const ff_encoder *e;
    const ff_texts *in;
    const ff_body *body;
    ff_group *groups;
    int64_t count;
    int threads;
    phase *phases;       /* NULL: alone */
    char *workspace;     /* the caller's scratch */
    size_t attention, row_bytes, largest;
    _Atomic int64_t next;
} job;

const ff_body *ff_body_of(int isa)
{
#if defined(__x86_64__)
    return isa == FF_PORTABLE ? &ff_body_portable : isa == FF_AVX2 ? &ff_body_avx2 : &ff_body_avx512;
#else
    (void)isa;
    return &ff_body_portable;
#endif
}

void ff_trim(void)
{
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

static size_t room_for(int64_t rows)
{
    return ((size_t)rows + FF_SPARE_ROWS - 1) / FF_SPARE_ROWS * FF_SPARE_ROWS;
}

static void place(const ff_encoder *e, ff_group *g, char *workspace)
{
    for (int i = 0; i < e->buffers; i++) {
        g->at[i] = workspace;
        workspace += (size_t)e->strides[i] * room_for(g->rows);
    }
}

int64_t ff_check_texts(const ff_encoder *e, const ff_texts *in)
{
    for (int64_t t = 0; t < in->texts; t++) {
        int64_t counted = e->position_start;
        if (in->offsets[t] >= in->offsets[t + 1])
            return t;
        for (int64_t i = in->offsets[t]; i < in->offsets[t + 1]; i++) {
            if (in->ids[i] < 0 || in->ids[i] >= e->vocabulary)
                return t;
            counted += in->ids[i] != e->pad_id;
        }
        if (counted > e->position_rows)
            return t;
    }
    return -1;
}

static void embed(const job *j, const ff_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = j->e;
    for (int64_t t = from; t < to; t++) {
        const int64_t *at = j->in->offsets + g->text + t;
        int32_t next = e->position_start;
        for (int64_t i = at[0]; i < at[1]; i++) {
            const int32_t id = j->in->ids[i];
            float *x = (float *)(g->at[s->to] + (i - g->row) * e->strides[s->to]);
            j->body->embed(e, id, id == e->pad_id ? e->pad_id : next++, s->width, x);
            j->body->norm(x, x, s->width, (const float *)(e->memory + s->scale), (const float *)(e->memory + s->bias), e->eps);
        }
    }
}

static void pool(const job *j, const ff_step *s, const ff_group *g, int64_t from, int64_t to, float *weights)
{
    const ff_encoder *e = j->e;
    const ptrdiff_t ld = e->strides[s->from] / 4;
    const size_t bytes = sizeof(float) * (size_t)s->width;
    for (int64_t t = from; t < to; t++) {
        const int64_t *at = j->in->offsets + g->text + t;
        const float *x = (const float *)g->at[s->from] + (at[0] - g->row) * ld;
        float *pooled = j->in->pooled + (g->text + t) * e->outputs + s->column;
        if (s->kind == FF_FIRST && s->to >= 0)
            memcpy(g->at[s->to] + t * e->strides[s->to], x, (size_t)e->strides[s->to]);
        else if (s->kind == FF_FIRST)
            memcpy(pooled, s->texts ? (const float *)g->at[s->from] + t * ld : x, bytes);
        else if (s->to < 0)
            ff_pool(e, j->in, s, g->text + t, x, ld, weights, pooled);
        else {
            float *row = (float *)(g->at[s->to] + t * e->strides[s->to]), *end = row + s->column + s->width;
            ff_pool(e, j->in, s, g->text + t, x, ld, weights, row + s->column);
            if (s->linear)  /* set for the first time: the columns behind are written later, or are padding */
                memset(end, 0, (size_t)((char *)(row + e->strides[s->to] / 4) - (char *)end));
        }
        for (int64_t i = at[0]; j->in->states && !s->texts && i < at[1]; i++)
            memcpy(j->in->states + (s->slot * j->in->offsets[j->in->texts] + i) * s->width, x + (i - at[0]) * ld, bytes);
    }
}

static void rotate(const job *j, const ff_step *s, const ff_group *g, int64_t from, int64_t to)
{
    const ff_encoder *e = j->e;
    const int64_t *at = j->in->offsets + g->text;
    for (int64_t row = from; row < to; row++) {
        while (at[1] - g->row <= row)
            at++;
        j->body->rotate((float *)(g->at[s->from] + row * e->strides[s->from]), e->heads, e->head,
                        (const float *)(e->memory + s->scale) + (row - (at[0] - g->row)) * e->head);
    }
}

/* Elements that a step of a group consists of, any range of which part() computes. */
static int64_t elements(const job *j, const ff_step *s, const ff_group *g)
{
    switch (s->kind) {
    case FF_LINEAR: return j->e->linears[s->linear].columns / (2 * ff_isa_vector(j->e->isa));
    case FF_PACK:
    case FF_ATTEND: return ff_attend_elements(j->e, s, j->in, g);
    case FF_NORM:
    case FF_ROTATE:
    case FF_GLU:
    case FF_CONVERT: return s->texts ? g->texts : g->rows;
    default: return g->texts;
    }
}

static void part(const job *j, const ff_step *s, const ff_group *g, int64_t from, int64_t to, float *scratch)
{
    const ff_encoder *e = j->e;
    const ptrdiff_t lda = s->from < 0 ? 0 : e->strides[s->from], ldc = s->to < 0 ? 0 : e->strides[s->to];
    switch (s->kind) {
    case FF_EMBED: embed(j, s, g, from, to); break;
    case FF_LINEAR: {
        const ff_linear *l = e->linears + s->linear;
        const float *add = s->add < 0 ? NULL : (const float *)g->at[s->add];
        ff_product_of(e->isa, (int)l->format)(e->memory, l, g->at[s->from], lda, s->texts ? g->texts : g->rows, from, to,
                                              (float *)g->at[s->to], ldc / 4, (int)s->activation, add,
                                              add ? e->strides[s->add] / 4 : 0);
        break;
    }
    case FF_PACK:
    case FF_ATTEND: ff_attend(e, s, j->in, g, from, to, scratch); break;
    case FF_NORM:
        for (int64_t r = from; r < to; r++)
            j->body->norm((const float *)(g->at[s->from] + r * lda), (float *)(g->at[s->to] + r * ldc), s->width,
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
            j->body->convert((const float *)(g->at[s->from] + r * lda), s->width, (int)s->format, g->at[s->to] + r * ldc);
        break;
    case FF_ROTATE: rotate(j, s, g, from, to); break;
    case FF_GLU:
        for (int64_t r = from; r < to; r++)
            j->body->glu((float *)(g->at[s->from] + r * lda), s->width, (int)s->activation);
        break;
    default: pool(j, s, g, from, to, scratch);  /* attention's has room for a number a token */
    }
}

static void wait_for(_Atomic int64_t *done, int64_t count)
{
    for (int i = 0; atomic_load(done) < count; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (i > SPINS)
            sched_yield();  /* whoever holds the last share may be waiting for this core */
    }
}

static void together(job *j, float *scratch)
{
    phase *p = j->phases;
    for (int64_t i = 0; i < j->count; i++)
        for (const ff_step *s = j->e->steps; s < j->e->steps + j->e->count; s++, p++) {
            const ff_group *g = j->groups + i;
            const int by_row = s->kind == FF_NORM || s->kind == FF_CONVERT || s->kind == FF_ROTATE || s->kind == FF_GLU;
            const int64_t n = elements(j, s, g), grain = by_row ? 8 : 1;
            int64_t shares = (n + grain - 1) / grain;
            shares = shares < 4 * (int64_t)j->threads ? shares : 4 * (int64_t)j->threads;
            for (int64_t k; (k = atomic_fetch_add(&p->next, 1)) < shares; atomic_fetch_add(&p->done, 1))
                part(j, s, g, k * n / shares, (k + 1) * n / shares, scratch);
            wait_for(&p->done, shares);
        }
}

static void alone(job *j, char *scratch)
{
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->count;) {
        ff_group *g = j->groups + i;
        place(j->e, g, scratch + j->attention);
        for (const ff_step *s = j->e->steps; s < j->e->steps + j->e->count; s++)
            part(j, s, g, 0, elements(j, s, g), (float *)scratch);
    }
}

static void work(void *context, int thread)
{
    job *j = context;
    char *scratch = j->workspace;
    if (thread) {  /* a helper without memory leaves its share to the others */
        scratch = ff_scratch(j->attention + (j->phases ? 0 : j->largest * j->row_bytes));
        if (!scratch)
            return;
    }
    const unsigned csr = ff_set_mxcsr(FF_FLUSH);
    ff_tiles(j->e->isa, 1);
    if (j->phases)
        together(j, (float *)scratch);
    else
        alone(j, scratch);
    ff_tiles(j->e->isa, 0);
    ff_set_mxcsr(csr);
}

/* A thread's own scratch: keys of texts of up to `own` tokens and scores, or pool's weights of the longest text. */
static size_t attention_bytes(const ff_encoder *e, int64_t own, int64_t longest)
{
    const int vector = ff_isa_vector(e->isa);
    const size_t floats = ff_keys_floats(own, e->head, vector) +
                          ff_attention_floats(longest, e->head, vector, ff_isa_rows(e->isa));
    const size_t weights = ((size_t)longest + 15) / 16 * 16;
    return sizeof(float) * (floats > weights ? floats : weights);
}

int ff_encoder_run(const ff_encoder *e, const ff_texts *in, int threads)
{
    if (in->texts <= 0)
        return 0;
    const int64_t total = in->offsets[in->texts];
    int64_t longest = 1, largest, cost = 0;
    for (const ff_step *s = e->steps; s < e->steps + e->count; s++)
        if (s->kind == FF_LINEAR && !s->texts)
            cost += e->linears[s->linear].columns * e->linears[s->linear].steps;
    if (threads > total * cost / WORTH_A_THREAD)
        threads = total * cost < 2 * WORTH_A_THREAD ? 1 : (int)(total * cost / WORTH_A_THREAD);
    for (int64_t t = 0; t < in->texts; t++)
        if (in->offsets[t + 1] - in->offsets[t] > longest)
            longest = in->offsets[t + 1] - in->offsets[t];
    int uneven;
    int64_t limit = ff_group_limit(in, longest, threads, &uneven), count = ff_cut(in, limit, NULL, &largest);
    const int shared = threads > 1 && uneven;
    if (shared)
        count = ff_cut(in, limit = TOGETHER_ROWS, NULL, &largest);
    job j = {.e = e, .in = in, .body = ff_body_of(e->isa), .count = count, .threads = threads, .largest = room_for(largest)};
    for (int i = 0; i < e->buffers; i++)
        j.row_bytes += (size_t)e->strides[i];
    j.attention = attention_bytes(e, shared && longest > FF_QUERIES ? FF_QUERIES : longest, longest);
    const size_t space = j.attention + j.largest * j.row_bytes;
    const size_t keys = shared ? sizeof(float) * ff_shared_floats(e, largest) : 0;
    const size_t phases = shared ? sizeof(phase) * (size_t)count * (size_t)e->count : 0;
    char *scratch = ff_scratch(space + keys + phases + sizeof(ff_group) * (size_t)count);
    if (!scratch)
        return -1;
    j.workspace = scratch;
    j.groups = (ff_group *)(scratch + space + keys + phases);
    ff_cut(in, limit, j.groups, &largest);
    if (shared) {
        j.phases = (phase *)(scratch + space + keys);
        memset(j.phases, 0, phases);
        for (int64_t i = 0; i < count; i++) {
            place(e, j.groups + i, scratch + j.attention);
            j.groups[i].keys = (float *)(scratch + space);
        }
    }
    ff_run(work, &j, threads < count || shared ? threads : (int)count);
    return 0;
}
