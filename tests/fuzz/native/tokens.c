/* WordPiece: a text has the same ids whatever the width of its letters, its neighbours and the limit, and no other ids than
   those of the vocabulary. The bytes: rules, vocabulary, then code points. */
#include "tokens/tokens.h"

#include "fuzz.h"

enum { MOST = 512, ADDED = 2 };

static const char *const vocabularies[] = {
    "{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"a\":3,\"##a\":4,\"aa\":5,\"##b\":6,\"ab\":7,\".\":8,\"ba\":9,\"##ba\":10,"
    "\"\\u00e9\":11,\"##\\u00e9\":12,\"e\":13,\"##e\":14,\"\\u4e2d\":15,\"i\":16,\"##\\u0307\":17,\"##\\u0301\":18,"
    "\"\\ud83d\\ude00\":19,\"[MASK]\":20,\"[\":21,\"]\":22,\"##cls\":23,\"1\":24,\"##1\":25,\"\\u1112\":26}",
    "{\"[UNK]\":7,\"[CLS]\":3,\"[SEP]\":2147483647,\"b\":0,\"##b\":1,\"[MASK]\":9,\"##\":4,\"\":5}",
    "{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"[MASK]\":3}",
};
static const char *const whole_words = "{\"ab\":100,\"b1\":101,\"aa\":102,\"\\u00e9\":103,\"a\":104,\"bbbbbbbbbbbbbbbb\":105}";

static int64_t read_points(source *s, uint32_t *points)
{
    static const uint32_t telling[] = {' ', '[', ']', '.', 'A', 'a', 'b', 0x130, 0xe9, 0xc9, 0x301, 0x307, 0x345, 0x4e2d, 0xac00,
                                       0x1f600, 0xd800, 0x0, 0x200b, 0x3000, 0x1100, 0x10ffff, 0xfffd, 0x2fa1d, 0x5bf, 0xf71};
    const int kind = take(s, 3);
    int64_t n = 0;
    while (s->at < s->end && n < MOST) {
        if (kind == 0)
            points[n++] = take_byte(s) & 127;
        else if (kind == 1)
            points[n++] = telling[take(s, (int)(sizeof telling / sizeof *telling) - 1)];
        else if (kind == 2)
            points[n++] = (uint32_t)take(s, 65535);
        else
            points[n++] = ((uint32_t)take(s, 65535) << 5 | take_byte(s) >> 3) % 0x110000;
        if (n > 1 && n % 7 == 0 && take_byte(s) > 250)  /* a long word */
            for (; n < MOST && n % 256; n++)
                points[n] = points[n - 1];
    }
    return n;
}

static void *as_width(const uint32_t *points, int64_t n, int width)
{
    char *to = room((size_t)n * (size_t)width);
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * width, points + i, (size_t)width);  /* little-endian */
    return to;
}

static int tokenize(const ff_tokenizer *w, const uint32_t *points, int64_t n, int width, int64_t limit, int special,
                    int32_t *ids, int64_t *count)
{
    void *letters = as_width(points, n, width);
    const ff_text text = {letters, n, width};
    const int state = ff_tokenize(w, &text, limit, special, ids, count);
    CHECK(*count <= limit, "%lld ids, and the limit is %lld", (long long)*count, (long long)limit);
    free(letters);
    return state;
}

static void check_all(const ff_tokenizer *w, const uint32_t *points, int64_t n, int width, int64_t limit, int special,
                      const int32_t *wanted, int64_t count, int state)
{
    enum { TEXTS = 3 };
    void *letters = as_width(points, n, width);
    ff_text texts[TEXTS] = {{letters, n, width}, {letters, 0, width}, {letters, n, width}};
    int64_t starts[TEXTS], counts[TEXTS];
    int8_t states[TEXTS];
    int32_t *ids = ff_tokenize_all(w, texts, TEXTS, limit, special, starts, counts, states, 2);
    CHECK(ids, "no memory");
    for (int i = 0; i < TEXTS; i += 2)
        CHECK(states[i] == state && counts[i] == count && !memcmp(ids + starts[i], wanted, (size_t)count * sizeof *ids),
              "text %d of several has other ids", i);
    free(ids);
    free(letters);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    uint32_t points[MOST], most = 0;
    const char *json = vocabularies[take(&s, 2)];
    ff_vocabulary v, uncut;
    int64_t end;
    CHECK(ff_read_vocabulary(&uncut, (const uint8_t *)whole_words, (int64_t)strlen(whole_words), &end) == FF_READ, "sound words");
    CHECK(ff_read_vocabulary(&v, (const uint8_t *)json, (int64_t)strlen(json), &end) == FF_READ, "a sound vocabulary");
    const int32_t before[] = {ff_find(&v, (const uint8_t *)"[CLS]\0\0\0\0\0\0\0\0", 5, 0)}, after[] = {2, 3};
    const ff_added added[ADDED] = {{(const uint8_t *)"[MASK]", 6, 9, 0}, {(const uint8_t *)"ab", 2, 7, 0}};
    ff_tokenizer w = {.words = &v, .added = added, .before = before, .after = after, .added_count = take(&s, ADDED),
                      .before_count = take(&s, 1), .after_count = take(&s, 2), .steps = take(&s, 31),
                      .longest = take(&s, 1) ? take(&s, FF_LONGEST) : take(&s, 8), .unknown = 0, .each = FF_EACH};
    w.whole = w.steps & FF_CLEAN && size % 2 ? &uncut : NULL;
    ff_prepare_letters(&w);
    const int special = take(&s, 1), ends = w.before_count + w.after_count;
    const int64_t limit = take(&s, 1) ? ends + take(&s, 20) : 4 * MOST, n = read_points(&s, points);
    for (int64_t i = 0; i < n; i++)
        most = points[i] > most ? points[i] : most;
    const int width = most < 256 ? 1 : most < 65536 ? 2 : 4;
    int64_t count, again, whole;
    int32_t *ids = room((size_t)limit * 4), *others = room((size_t)limit * 4), *all = room(4 * MOST * 4);
    const int state = tokenize(&w, points, n, width, limit, special, ids, &count);
    for (int wider = 2 * width; wider <= 4; wider *= 2) {
        CHECK(tokenize(&w, points, n, wider, limit, special, others, &again) == state, "another state in %d bytes", wider);
        CHECK(again == count && !memcmp(ids, others, (size_t)count * 4), "other ids in letters of %d bytes", wider);
    }
    if (tokenize(&w, points, n, width, 4 * MOST, 0, all, &whole) != FF_HALF && state != FF_HALF) {
        const int64_t room_left = limit - (special ? ends : 0), kept = whole < room_left ? whole : room_left;
        CHECK((state == FF_CUT) == (whole > room_left), "%lld ids were cut to %lld in silence", (long long)whole, (long long)count);
        CHECK(count == kept + (special ? ends : 0), "%lld ids instead of %lld", (long long)count, (long long)kept);
        CHECK(!memcmp(ids + (special ? w.before_count : 0), all, (size_t)kept * 4), "the limit changes ids before it");
    }
    check_all(&w, points, n, width, limit, special, ids, count, state);
    free(ids), free(others), free(all);
    ff_free_vocabulary(&v);
    ff_free_vocabulary(&uncut);
    return 0;
}
