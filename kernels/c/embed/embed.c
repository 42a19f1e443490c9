/* Each thread takes TEXTS texts at a time through tokenizer, pooling and flow, so that they stay in cache. */
#include <stdatomic.h>
#include <stdlib.h>

#include "embed.h"

enum { TEXTS = 32 };
enum { WORTH = 16 };  /* fewest texts per thread for which waking one pays */

typedef struct {
    const ff_embedder *e;
    const ff_text *texts;
    int64_t many;
    float *out;
    int64_t keep;
    float *kept;  /* (many, flow->inputs): pooled vectors for the caller, or NULL */
    int8_t *states;
    int normalize;
    _Atomic int64_t next;
    _Atomic int failed;
} job;

typedef struct {
    int32_t *ids;
    int64_t room;
    int64_t offsets[TEXTS + 1];
    float *pooled;
} desk;

/* Enlarge d->ids for `count` texts. Returns 0 if memory is short. */
static int make_room(desk *d, const ff_embedder *e, const ff_text *texts, int64_t count)
{
    int64_t room = 1;
    for (int64_t i = 0; i < count; i++)
        room += ff_room(e->words, &texts[i], e->limit, e->special);
    if (room <= d->room)
        return 1;
    free(d->ids);
    d->ids = malloc((size_t)room * sizeof *d->ids);
    d->room = d->ids ? room : 0;
    return d->ids != NULL;
}

/* Set d->ids, d->offsets (count + 1) and states (count). Returns 0 if a text has half a surrogate pair. */
static int tokenize_few(desk *d, const ff_embedder *e, const ff_text *texts, int64_t count, int8_t *states)
{
    int64_t at = 0;
    d->offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t found = 0, kept = 0;
        int32_t *ids = d->ids + at;
        states[i] = (int8_t)ff_tokenize(e->words, &texts[i], e->limit, e->special, ids, &found);
        if (states[i] > FF_CUT)
            return 0;
        for (int64_t k = 0; k < found; k++)
            if (ids[k] != e->left_out)
                ids[kept++] = ids[k];
        d->offsets[i + 1] = at += kept;
    }
    return 1;
}

/* Write d->pooled (count, flow->inputs). Returns -1, or the index of a text with bad ids, or -2 if memory is short. */
static int64_t pool_few(desk *d, const ff_embedder *e, int64_t count)
{
    int64_t bad;
    if (e->table) {
        if ((bad = ff_table_check(e->table, d->ids, d->offsets, count)) < 0)
            ff_table_run(e->table, d->ids, d->offsets, count, d->pooled, 1);
        return bad;
    }
    ff_texts given = {.ids = d->ids, .offsets = d->offsets, .texts = count, .pooled = d->pooled};
    if ((bad = ff_check_texts(e->encoder, &given)) >= 0)
        return bad;
    return ff_encoder_run(e->encoder, &given, 1) ? -2 : -1;
}

static void embed_texts(void *context, int thread)
{
    job *j = context;
    const ff_embedder *e = j->e;
    const ff_flow *flow = e->flow;
    float *own = j->kept ? NULL : malloc(sizeof(float) * TEXTS * (size_t)flow->inputs);
    desk d = {.pooled = own};
    (void)thread;
    for (int64_t first; (own || j->kept) && (first = atomic_fetch_add(&j->next, TEXTS)) < j->many;) {
        if (j->kept)
            d.pooled = j->kept + first * flow->inputs;
        const int64_t count = j->many - first < TEXTS ? j->many - first : TEXTS;
        int64_t bad = -2;
        if (make_room(&d, e, j->texts + first, count)) {
            if (!tokenize_few(&d, e, j->texts + first, count, j->states + first))
                continue;
            bad = pool_few(&d, e, count);
        }
        if (bad >= 0)
            j->states[first + bad] = FF_NO_ROW;
        else if (bad == -2 || ff_flow_run(flow, d.pooled, j->out + first * j->keep, count, j->keep, j->normalize, 1))
            atomic_store(&j->failed, 1);
    }
    if (!own && !j->kept)
        atomic_store(&j->failed, 1);
    free(d.ids);
    free(own);
}

int ff_embed(const ff_embedder *e, const ff_text *texts, int64_t many, float *out, int64_t keep, float *pooled, int8_t *states,
    int normalize, int threads)
{
    const int64_t worth = 1 + many / WORTH;
    job j = {e, texts, many, out, keep, pooled, states, normalize, 0, 0};
    ff_run(embed_texts, &j, threads < worth ? threads : (int)worth);
    return j.failed ? -1 : 0;
}
