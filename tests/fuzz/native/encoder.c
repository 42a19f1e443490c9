/* Encoders that record.py laid out: bad texts are refused, a text has the same bits in every company, and states are kept. */
#include "programs.h"

enum { TEXTS = 12 };

static ff_encoder *encoders;
static int64_t count;

static void read_all(void)
{
    FILE *file = programs_open();
    for (int64_t flows = read_number(file); flows; flows--) {
        const ff_flow f = read_flow(file);
        free((void *)f.weights), free((void *)f.ops), free((void *)f.table);
    }
    count = read_number(file);
    encoders = room(sizeof *encoders * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        encoders[i] = read_encoder(file);
    fclose(file);
}

/* The number of a text that must be refused, -1 if all are sound: the definition of ff_check_texts. */
static int64_t first_bad(const ff_encoder *e, const ff_texts *in)
{
    for (int64_t t = 0; t < in->texts; t++) {
        int64_t numbered = e->position_start, bad = in->offsets[t] == in->offsets[t + 1];
        for (int64_t i = in->offsets[t]; i < in->offsets[t + 1]; i++)
            bad |= in->ids[i] < 0 || in->ids[i] >= e->vocabulary, numbered += in->ids[i] != e->pad_id;
        if (bad || numbered > e->position_rows)
            return t;
    }
    return -1;
}

static void check_alone(const ff_encoder *e, const ff_texts *in, int64_t t)
{
    const int64_t offsets[2] = {0, in->offsets[t + 1] - in->offsets[t]};
    float *pooled = room((size_t)e->outputs * 4), *states = room((size_t)(e->layers * offsets[1] * e->hidden) * 4);
    const ff_texts one = {in->ids + in->offsets[t], offsets, 1, in->skip, NULL, pooled, in->states ? states : NULL};
    const int64_t all = in->offsets[in->texts];
    CHECK(ff_encoder_run(e, &one, 1) == 0, "no memory");
    CHECK(same_floats(in->pooled + t * e->outputs, pooled, e->outputs), "text %lld has other bits alone", (long long)t);
    for (int64_t layer = 0; in->states && layer < e->layers; layer++)
        CHECK(same_floats(in->states + (layer * all + in->offsets[t]) * e->hidden, states + layer * offsets[1] * e->hidden,
                          offsets[1] * e->hidden), "the states of text %lld have other bits alone", (long long)t);
    free(pooled), free(states);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!encoders)
        read_all();
    source s = source_of(data, size);
    const ff_encoder *e = &encoders[take(&s, (int)count - 1)];
    int64_t offsets[TEXTS + 1] = {0}, texts = take(&s, TEXTS);
    for (int64_t t = 0; t < texts; t++) {
        const int kind = take_byte(&s);
        offsets[t + 1] = offsets[t] + (kind == 255 ? 0 : kind > 240 ? 1 + take(&s, 140) : 1 + kind % 20);
    }
    const int64_t all = offsets[texts];
    int32_t *ids = room((size_t)all * 4);
    for (int64_t i = 0; i < all; i++) {
        ids[i] = take(&s, e->vocabulary - 1);
        if (take_byte(&s) == 255)
            ids[i] = take(&s, 1) ? -1 - take(&s, 9) : e->vocabulary + take(&s, 9);
    }
    const int keeps = take(&s, 3) == 0, threads = 1 + take(&s, 2);
    float *pooled = room((size_t)(texts * e->outputs) * 4), *states = room((size_t)(keeps ? e->layers * all * e->hidden : 0) * 4);
    const ff_texts in = {ids, offsets, texts, take(&s, 3) ? 0 : take(&s, 9), NULL, pooled, keeps ? states : NULL};
    const int64_t bad = ff_check_texts(e, &in);
    CHECK(bad == first_bad(e, &in), "text %lld is refused", (long long)bad);
    if (bad < 0) {
        CHECK(ff_encoder_run(e, &in, threads) == 0, "no memory");
        if (texts)
            check_alone(e, &in, take(&s, (int)texts - 1));
    }
    free(ids), free(pooled), free(states);
    return 0;
}
