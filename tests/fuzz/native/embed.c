/* Texts to embeddings in one call against its three kernels, called one after another: the same bits. Flows come from record.py. */
#include "embed/embed.h"

#include "programs.h"

enum { TEXTS = 70, LETTERS = 40 };

static void check_text(const ff_embedder *e, const ff_text *text, int state, const float *kept, const float *found, int64_t keep,
                       int normalize)
{
    int32_t ids[FF_EACH * LETTERS + 2];
    int64_t written, offsets[2] = {0, 0};
    const int wanted = ff_tokenize(e->words, text, e->limit, e->special, ids, &written);
    for (int64_t i = 0; i < written; i++)
        if (ids[i] != e->left_out)
            ids[offsets[1]++] = ids[i];
    if (wanted != FF_HALF && ff_table_check(e->table, ids, offsets, 1) >= 0) {
        CHECK(state == FF_NO_ROW, "state %d of a text with an id that has no row", state);
        return;
    }
    CHECK(state == wanted, "state %d, not %d", state, wanted);
    if (wanted == FF_HALF)
        return;
    float *pooled = room((size_t)e->flow->inputs * 4), *z = room((size_t)e->flow->outputs * 4);
    ff_table_run(e->table, ids, offsets, 1, pooled, 1);
    CHECK(!kept || same_floats(pooled, kept, e->flow->inputs), "other pooled vectors than the table's");
    CHECK(ff_flow_run(e->flow, pooled, z, 1, keep, normalize, 1) == 0, "no memory");
    CHECK(same_floats(z, found, keep), "other bits than those of the kernels one by one");
    free(pooled), free(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char json[] = "{\"[UNK]\":0,\"a\":1,\"##a\":2,\"b\":3,\"##b\":4,\"[C]\":5,\"[S]\":6,\"ab\":7,\".\":8,\"far\":99}";
    static const int32_t before[] = {5}, after[] = {6};
    static const uint16_t points[] = {'a', 'b', ' ', '.', 'f', 'r', 'A', 0xe1, 0x4e2d, 0xd800};
    source s = source_of(data, size);
    ff_flow flow = drawn_flow(&s);
    flow.cost = INT32_MAX;
    ff_vocabulary v;
    int64_t end;
    CHECK(ff_read_vocabulary(&v, (const uint8_t *)json, (int64_t)strlen(json), &end) == FF_READ, "a sound vocabulary");
    ff_tokenizer w = {.words = &v, .before = before, .after = after, .before_count = 1, .after_count = 1, .steps = take(&s, 31),
                      .longest = 20, .unknown = 0, .each = FF_EACH};
    ff_prepare_letters(&w);
    ff_table t = {.isa = flow.isa, .stored = FF_ROWS_FLOAT, .count = 9, .vocabulary = 9, .width = flow.inputs, .run = 16};
    float *rows = room((size_t)(t.count * t.width) * 4);
    for (int64_t i = 0; i < t.count * t.width; i++)
        rows[i] = (float)(take_byte(&s) - 128) / 64;
    t.rows = (const char *)rows;
    const ff_embedder e = {.words = &w, .table = &t, .flow = &flow, .limit = 2 + take(&s, 30), .special = take(&s, 1),
                           .left_out = take(&s, 3) - 1};
    const int many = take(&s, TEXTS), normalize = take(&s, 1);
    ff_text texts[TEXTS];
    for (int i = 0; i < many; i++) {
        const int length = take(&s, i % 8 ? 6 : LETTERS);
        uint16_t *letters = room((size_t)length * 2);
        for (int k = 0; k < length; k++) {
            const int kind = take_byte(&s);
            letters[k] = points[kind == 255 ? 9 : kind % 9];
        }
        texts[i] = (ff_text){letters, length, 2};
    }
    float *out = room((size_t)(many * flow.outputs) * 4);
    int8_t states[TEXTS] = {0};
    float *kept = room((size_t)(many * flow.inputs) * 4), *pooled = take(&s, 1) ? kept : NULL;
    const int threads = 1 + take(&s, 2);
    const int64_t keep = flow.outputs - take(&s, (int)flow.outputs - 1);
    CHECK(ff_embed(&e, texts, many, out, keep, pooled, states, normalize, threads) == 0, "no memory");
    int bad[TEXTS / 32 + 1] = {0};  /* blocks in which a text cannot be pooled: their rows are not written */
    for (int i = 0; i < many; i++)
        bad[i / 32] |= states[i] == FF_HALF || states[i] == FF_NO_ROW;
    for (int i = 0; i < many; i++)
        if (!bad[i / 32])
            check_text(&e, &texts[i], states[i], pooled ? pooled + i * flow.inputs : NULL, out + i * keep, keep, normalize);
    for (int i = 0; i < many; i++)
        free((void *)texts[i].letters);
    free(out), free(kept), free(rows);
    ff_free_vocabulary(&v);
    return 0;
}
