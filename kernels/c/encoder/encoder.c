/* Run texts through the encoder's steps. First, each thread takes whole groups of texts. Then all threads share each
   remaining group, split by panels, heads or rows. A text's bits are the same in both phases. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"
#include "mxcsr.h"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#define SHARE_ROWS 192  /* most rows that a thread takes at a time */
#define SPINS 2000  /* about 21 us of polling before a thread yields its core */
#define ROW_GRAIN 8  /* fewest rows that a thread takes */
#define WORTH_A_THREAD 2000000  /* multiply-adds: ten times the cost of waking a thread */

typedef struct {  /* counters of one shared step, in its own cache line */
    _Atomic int64_t next, done;
    char line[48];
} phase;
_Static_assert(sizeof(phase) == 64, "a phase fills a cache line");

typedef struct {
    ff_call call;
    ff_group *groups;
    ff_shares shares;
    int threads;
    phase *phases;       /* (shared groups, steps) */
    char *workspace;
    size_t attention, own;  /* scratch bytes per thread: attention, buffers of its own groups */
    _Atomic int64_t next;
} job;

const ff_body *ff_body_of(int isa)
{
#if defined(__x86_64__)
    return isa == FF_PORTABLE ? &ff_body_portable : isa == FF_AVX2 ? &ff_body_avx2 : &ff_body_avx512;
#elif defined(__aarch64__)
    return isa == FF_PORTABLE ? &ff_body_portable : &ff_body_neon;
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

static size_t padded_rows(int64_t rows)
{
    return ((size_t)rows + FF_SPARE_ROWS - 1) / FF_SPARE_ROWS * FF_SPARE_ROWS;
}

static void lay_out_buffers(const ff_encoder *e, ff_group *g, char *workspace)
{
    for (int i = 0; i < e->buffers; i++) {
        g->at[i] = workspace;
        workspace += (size_t)e->strides[i] * padded_rows(g->rows);
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

static void wait_for(_Atomic int64_t *done, int64_t count)
{
    for (int i = 0; atomic_load(done) < count; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (i > SPINS)
            sched_yield();  /* the thread with the last share may need this core */
    }
}

/* 1: row i of the result depends only on row i of the operand. */
static int is_by_row(const ff_step *s)
{
    switch (s->kind) {
    case FF_LINEAR: return !s->linear.texts;
    case FF_NORM: return !s->norm.texts;
    default: return s->kind == FF_CONVERT || s->kind == FF_ROTATE || s->kind == FF_GLU;
    }
}

/* Run steps [s, end), all by row, on share k of a group's rows. */
static void run_rows(const job *j, const ff_step *s, const ff_step *end, const ff_group *g, int64_t k, int64_t shares,
                      float *scratch)
{
    const int64_t unit = j->call.e->isa >= FF_AMX ? FF_SPARE_ROWS : 1;  /* AMX writes whole blocks of rows */
    const int64_t units = (g->rows + unit - 1) / unit, from = k * units / shares * unit, up = (k + 1) * units / shares * unit;
    const int64_t to = up < g->rows ? up : g->rows;
    ff_group some = *g;
    some.rows = to - from;
    for (int i = 0; i < j->call.e->buffers; i++)
        some.at[i] += from * j->call.e->strides[i];
    for (; s < end; s++)
        if (s->kind == FF_LINEAR)
            ff_run_step(&j->call, s, &some, 0, ff_step_elements(&j->call, s, &some), scratch);
        else
            ff_run_step(&j->call, s, g, from, to, scratch);
}

static void run_together(job *j, float *scratch)
{
    const ff_step *last = j->call.e->steps + j->call.e->count;
    phase *p = j->phases;
    for (const ff_group *g = j->groups + j->shares.count, *stop = g + j->shares.shared; g < stop; g++) {
        const int64_t thread_rows = g->rows / j->threads;
        for (const ff_step *s = j->call.e->steps, *end; s < last; s = end, p++) {
            const int rows = is_by_row(s) && thread_rows >= FF_THREAD_ROWS;
            const int64_t n = ff_step_elements(&j->call, s, g), grain = is_by_row(s) && s->kind != FF_LINEAR ? ROW_GRAIN : 1;
            int64_t shares = (n + grain - 1) / grain;
            shares = shares < 4 * (int64_t)j->threads ? shares : 4 * (int64_t)j->threads;
            if (rows)
                shares = j->threads * ((thread_rows - 1) / SHARE_ROWS + 1);
            for (end = s + 1; rows && end < last && is_by_row(end);)
                end++;
            for (int64_t k; (k = atomic_fetch_add(&p->next, 1)) < shares; atomic_fetch_add(&p->done, 1))
                if (rows)
                    run_rows(j, s, end, g, k, shares, scratch);
                else
                    ff_run_step(&j->call, s, g, k * n / shares, (k + 1) * n / shares, scratch);
            wait_for(&p->done, shares);
        }
    }
}

static void run_alone(job *j, char *scratch)
{
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->shares.count;) {
        ff_group *g = j->groups + i;
        lay_out_buffers(j->call.e, g, scratch + j->attention);
        for (const ff_step *s = j->call.e->steps; s < j->call.e->steps + j->call.e->count; s++)
            ff_run_step(&j->call, s, g, 0, ff_step_elements(&j->call, s, g), (float *)scratch);
    }
}

static void run_shares(void *context, int thread)
{
    job *j = context;
    char *scratch = j->workspace;
    if (thread) {  /* without memory, leave the work to other threads */
        scratch = ff_scratch(j->attention + j->own);
        if (!scratch)
            return;
    }
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    ff_switch_tiles(j->call.e->isa, 1);
    run_alone(j, scratch);
    run_together(j, (float *)scratch);
    ff_switch_tiles(j->call.e->isa, 0);
    ff_set_mxcsr(csr);
}

/* A thread's scratch bytes for attention, or for pooling weights if more. */
static size_t attention_bytes(const ff_encoder *e, int64_t own, int64_t longest)
{
    const int vector = ff_isa_vector(e->isa);
    const size_t floats = ff_keys_floats(own, e->head, vector) +
                          ff_attention_floats(longest, e->head, vector);
    const size_t weights = ((size_t)longest + 15) / 16 * 16;
    return sizeof(float) * (floats > weights ? floats : weights);
}

int ff_encoder_run(const ff_encoder *e, const ff_texts *in, int threads)
{
    if (in->texts <= 0)
        return 0;
    const int64_t total = in->offsets[in->texts];
    int64_t longest = 1, cost = 0;
    for (const ff_step *s = e->steps; s < e->steps + e->count; s++)
        if (s->kind == FF_LINEAR && !s->linear.texts)
            cost += e->linears[s->linear.product].columns * e->linears[s->linear.product].steps;
    if (threads > total * cost / WORTH_A_THREAD)
        threads = total * cost < 2 * WORTH_A_THREAD ? 1 : (int)(total * cost / WORTH_A_THREAD);
    for (int64_t t = 0; t < in->texts; t++)
        if (in->offsets[t + 1] - in->offsets[t] > longest)
            longest = in->offsets[t + 1] - in->offsets[t];
    job j = {.call = {e, in, ff_body_of(e->isa)}, .threads = threads, .shares = ff_share_texts(in, longest, e->isa, threads)};
    ff_cut_groups(in, &j.shares, NULL);
    const int64_t count = j.shares.count + j.shares.shared;
    size_t row_bytes = 0;
    for (int i = 0; i < e->buffers; i++)
        row_bytes += (size_t)e->strides[i];
    j.attention = attention_bytes(e, j.shares.alone || longest < FF_QUERIES ? longest : FF_QUERIES, longest);
    j.own = padded_rows(j.shares.rows) * row_bytes;
    const size_t space = j.attention + j.own, all = padded_rows(j.shares.shared_rows) * row_bytes;
    const size_t keys = sizeof(float) * ff_shared_floats(e, j.shares.shared_rows);
    const size_t phases = sizeof(phase) * (size_t)j.shares.shared * (size_t)e->count;
    char *scratch = ff_scratch(space + all + keys + phases + sizeof(ff_group) * (size_t)count);
    if (!scratch)
        return -1;
    j.workspace = scratch;
    j.phases = (phase *)(scratch + space + all + keys);
    memset(j.phases, 0, phases);
    j.groups = (ff_group *)((char *)j.phases + phases);
    ff_cut_groups(in, &j.shares, j.groups);
    for (ff_group *g = j.groups + j.shares.count; g < j.groups + count; g++) {
        lay_out_buffers(e, g, scratch + space);
        g->keys = (float *)(scratch + space + all);
    }
    ff_run(run_shares, &j, threads < count || j.shares.shared ? threads : (int)count);
    return 0;
}
