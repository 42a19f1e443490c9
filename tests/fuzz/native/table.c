/* The mean of rows of a table against a plain loop, bit for bit: kernels/table/reference.py in C. */
#include "table/table.h"

#include "fuzz.h"
#include "mxcsr.h"

static float row_number(const ff_table *t, int64_t i)
{
    if (t->stored == FF_ROWS_FLOAT)
        return ((const float *)(const void *)t->rows)[i];
    if (t->stored == FF_ROWS_BYTES)
        return (float)((const int8_t *)t->rows)[i];
    const unsigned h = ((const uint16_t *)(const void *)t->rows)[i], exponent = h >> 10 & 31, fraction = h & 1023;
    const float size = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return h >> 15 ? -size : size;
}

static void check_text(const ff_table *t, const int32_t *ids, int64_t tokens, const float *out)
{
    for (int64_t c = 0; c < t->width; c++) {
        volatile float whole = 0, sum = 0, excess = 0, more, next, total = t->weights ? 0 : (float)tokens;
        for (int64_t i = 0; i < tokens; i++) {
            volatile float factor = t->weights ? t->weights[ids[i]] : 1, x;
            if (i && i % t->run == 0) {
                more = sum - excess, next = whole + more;
                excess = (next - whole) - more, whole = next, sum = 0;
            }
            if (t->weights)
                total = total + t->weights[ids[i]];
            if (t->scales)
                factor = factor * t->scales[ids[i]];
            x = row_number(t, (t->mapping ? t->mapping[ids[i]] : ids[i]) * t->width + c);
            if (t->weights || t->scales)
                x = factor * x;
            sum = sum + x;
        }
        more = sum - excess;
        volatile float wanted = tokens ? (whole + more) / total : 0;
        const float one = wanted;
        CHECK(same_floats(out + c, &one, 1), "column %lld: %g is not %g", (long long)c, (double)out[c], (double)one);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    ff_table t = {.isa = take_isa(&s), .stored = take(&s, FF_ROWS_KINDS - 1), .count = 1 + take(&s, 20), .width = 1 + take(&s, 150)};
    const int flags = take(&s, 7), threads = 1 + take(&s, 1);
    t.run = take(&s, 1) ? 1 + take(&s, 5) : 1ll << 62;
    t.vocabulary = flags & 4 ? 1 + take(&s, 30) : t.count;
    char *rows = room((size_t)(t.count * t.width * ff_row_size(t.stored)));
    float *scales = room((size_t)t.vocabulary * 4), *weights = room((size_t)t.vocabulary * 4);
    int32_t *mapping = room((size_t)t.vocabulary * 4);
    for (int64_t i = 0; i < t.count * t.width; i++) {
        const float x = take_float(&s);
        const uint16_t half = (uint16_t)(take(&s, 65535) & 0xbfff);  /* no infinity */
        memcpy(rows + i * ff_row_size(t.stored), t.stored == FF_ROWS_FLOAT ? (const void *)&x : &half, (size_t)ff_row_size(t.stored));
    }
    for (int64_t i = 0; i < t.vocabulary; i++) {
        scales[i] = take_float(&s), weights[i] = fabsf(take_float(&s));
        mapping[i] = take(&s, (int)t.count - 1);
    }
    t.rows = rows, t.scales = flags & 1 ? scales : NULL, t.weights = flags & 2 ? weights : NULL, t.mapping = flags & 4 ? mapping : NULL;
    enum { MOST = 70 };
    int64_t offsets[MOST + 1] = {0}, texts = take(&s, MOST);
    for (int64_t i = 0; i < texts; i++)
        offsets[i + 1] = offsets[i] + take(&s, i % 8 ? 3 : 40);
    int32_t *ids = room((size_t)offsets[texts] * 4);
    float *out = room((size_t)(texts * t.width) * 4);
    int bad = 0;
    for (int64_t i = 0; i < offsets[texts]; i++) {
        ids[i] = take(&s, (int)t.vocabulary - 1);
        if (take_byte(&s) == 255)
            ids[i] = take(&s, 1) ? -1 : (int32_t)t.vocabulary;
        bad |= ids[i] < 0 || ids[i] >= t.vocabulary;
    }
    CHECK((ff_table_check(&t, ids, offsets, texts) >= 0) == bad, "an id outside the table passes, or none and it does not");
    if (!bad) {
        ff_table_run(&t, ids, offsets, texts, out, threads);
        const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
        for (int64_t i = 0; i < texts; i++)
            check_text(&t, ids + offsets[i], offsets[i + 1] - offsets[i], out + i * t.width);
        ff_set_mxcsr(csr);
    }
    free(rows), free(scales), free(weights), free(mapping), free(ids), free(out);
    return 0;
}
