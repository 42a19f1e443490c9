#include <stdatomic.h>
#include <string.h>

#include "mxcsr.h"
#include "table.h"

#define TEXTS 32
#define WORTH (1 << 17)  /* additions that take as long as waking a thread */

typedef struct {
    ff_table_body *body;
    const ff_table *table;
    const int32_t *ids;
    const int64_t *offsets;
    int64_t texts;
    float *out;
    _Atomic int64_t next;
} job;

int ff_row_size(int stored)
{
    return stored == FF_ROWS_FLOAT ? 4 : stored == FF_ROWS_HALF ? 2 : 1;
}

int64_t ff_table_check(const ff_table *t, const int32_t *ids, const int64_t *offsets, int64_t texts)
{
    for (int64_t text = 0; text < texts; text++) {
        if (offsets[text] > offsets[text + 1] || offsets[text + 1] > offsets[texts])
            return text;
        for (int64_t i = offsets[text]; i < offsets[text + 1]; i++)
            if (ids[i] < 0 || ids[i] >= t->vocabulary)
                return text;
    }
    return -1;
}

static void pool_texts(void *context, int thread)
{
    job *j = context;
    const ff_mxcsr before = ff_set_mxcsr(FF_FLUSH);
    (void)thread;
    for (int64_t from; (from = atomic_fetch_add(&j->next, TEXTS)) < j->texts;)
        for (int64_t i = from; i < j->texts && i < from + TEXTS; i++) {
            const int64_t tokens = j->offsets[i + 1] - j->offsets[i];
            float *out = j->out + i * j->table->width;
            if (tokens)
                j->body(j->table, j->ids + j->offsets[i], tokens, out);
            else
                memset(out, 0, sizeof(float) * (size_t)j->table->width);
        }
    ff_set_mxcsr(before);
}

static ff_table_body *body_of(int isa)
{
#if defined(__x86_64__)
    if (isa != FF_PORTABLE)
        return isa == FF_AVX2 ? ff_table_avx2 : ff_table_avx512;
#elif defined(__aarch64__)
    if (isa != FF_PORTABLE)
        return ff_table_neon;
#endif
    (void)isa;
    return ff_table_portable;
}

void ff_table_run(const ff_table *t, const int32_t *ids, const int64_t *offsets, int64_t texts, float *out, int threads)
{
    const int64_t worth = offsets[texts] * t->width / WORTH;
    if (threads > worth)
        threads = worth < 1 ? 1 : (int)worth;
    job j = {body_of(t->isa), t, ids, offsets, texts, out, 0};
    ff_run(pool_texts, &j, threads);
}
