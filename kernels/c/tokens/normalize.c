/* The steps of Unigram's normalizer, in UTF-8. */
#define _GNU_SOURCE  /* memmem */
#include <stdlib.h>

#include "marks.h"
#include "normalize.h"

enum { POINTS = 0x110000, SHORT = 6 };  /* a grapheme of under SHORT bytes is looked up whole */

static uint8_t marks[POINTS];

void ff_prepare_marks(void)
{
    uint32_t c = 0;
    for (size_t i = 0; i < sizeof mark_runs / sizeof *mark_runs; i++) {
        c += mark_runs[i][0];
        for (int n = 0; n < mark_runs[i][1]; n++, c++)
            marks[c] = (uint8_t)mark_runs[i][2];
    }
}

void ff_open_buffer(ff_buffer *b)
{
    b->at = b->own, b->length = 0, b->room = FF_OWN, b->failed = 0;
}

void ff_close_buffer(ff_buffer *b)
{
    if (b->at != b->own)
        free(b->at);
}

int ff_reserve_more(ff_buffer *b, int64_t more)
{
    int64_t room = 2 * (b->length + more);
    uint8_t *at = b->failed ? NULL : realloc(b->at == b->own ? NULL : b->at, (size_t)room);
    if (!at)
        return b->failed = 1, 0;
    if (b->at == b->own)
        memcpy(at, b->own, (size_t)b->length);
    b->at = at, b->room = room;
    return 1;
}

enum { KEPT, REPLACED, BROKEN };

static uint32_t unit_of(const ff_rule *m, uint32_t at)
{
    uint32_t unit;
    memcpy(&unit, m->old + 4 * (size_t)at, 4);
    return unit;
}

/* Find the shortest key of the map that begins the letters (n), and put its text. Returns KEPT if there is none, and
   BROKEN if the map leads out of itself. */
static int replace(const ff_rule *m, const uint8_t *letters, int n, ff_buffer *made)
{
    uint32_t many = (uint32_t)m->old_length / 4, unit = unit_of(m, 0), at = 0;
    for (int i = -1; i < n; i++) {
        if (i >= 0) {
            if (!letters[i])
                return KEPT;
            if ((at ^= letters[i]) >= many)
                return BROKEN;
            unit = unit_of(m, at);
            if ((unit & 0x800000ffu) != letters[i])
                return KEPT;
        }
        at ^= unit >> 10 << ((unit & 0x200) >> 6);
        if (i < 0 || !(unit & 0x100))
            continue;
        if (at >= many || (unit_of(m, at) & 0x7fffffff) > (uint32_t)m->new_length)
            return BROKEN;
        const uint8_t *text = m->new + (unit_of(m, at) & 0x7fffffff);
        if (*text >> 6 == 2)
            return BROKEN;
        ff_put(made, text, (int64_t)strlen((const char *)text));
        return REPLACED;
    }
    return KEPT;
}

void ff_prepare_map(ff_rule *m)
{
    ff_buffer made;
    ff_open_buffer(&made);
    for (uint32_t c = 0; c < FF_ODDS; c++) {
        uint8_t letters[4];
        int n = ff_put_utf8(letters, c);
        made.length = 0;
        m->odd[c] = c == '\r' || marks[c] & (FF_JOINS | FF_TAKES) || replace(m, letters, n, &made) != KEPT;
    }
    ff_close_buffer(&made);
}

static int is_hangul(uint32_t c)
{
    return c - 0x1100 < 256 || c - 0xa960 < 32 || c - 0xac00 < 11264;
}

/* Return whether a short grapheme, at byte `at`, of a character (`first`, n bytes) and marks up to `last` may belong
   to a longer one, by the rules for emoji, Hangul or Indic syllables. */
static int may_join(const uint8_t *from, int64_t at, uint32_t first, int n, uint32_t last)
{
    int pictured = first == 0xa9 || first == 0xae, length = 0;
    if (pictured && last == 0x200d)
        return 1;
    if (!at || (n != 3 && !pictured))
        return 0;
    uint32_t before = ff_read_before(from, at, &length);
    return (marks[before] & FF_JOINS && length == 3) || is_hangul(before);
}

static int map_graphemes(const ff_rule *m, const uint8_t *from, int64_t n, ff_buffer *made)
{
    for (int64_t i = 0; i < n;) {
        int64_t start = i, base = i;
        uint32_t c = 0;
        int length, found;
        for (; i < n && from[i] < 0xf0 && !m->odd[c = ff_read_utf8(from + i, &length)]; i += length)
            base = i;
        if (i < n && (from[i] >= 0xf0 || marks[c] & FF_JOINS))
            i = base;  /* the grapheme may begin with the character before */
        ff_put(made, from + start, i - start);
        if (i == n)
            break;
        uint32_t last = c = ff_read_utf8(from + i, &length);
        int64_t end = i + length;
        if (marks[c] & FF_TAKES)
            return FF_ASKED;
        if (c == '\r' && end < n && from[end] == '\n')
            end++;
        while (!(marks[c] & FF_BREAKS) && end < n && from[end] >= 128) {
            int more;
            uint32_t next = ff_read_utf8(from + end, &more);
            if (!(marks[next] & FF_JOINS))
                break;
            end += more, last = next;
        }
        if (end - i < SHORT && end > i + length) {
            if (may_join(from, i, c, length, last) || (found = replace(m, from + i, (int)(end - i), made)) == BROKEN)
                return FF_ASKED;
            if (found == REPLACED)
                i = end;
        }
        for (; i < end; i += length) {
            length = ff_utf8_length(from[i]);
            if ((found = replace(m, from + i, length, made)) == BROKEN)
                return FF_ASKED;
            if (found == KEPT)
                ff_put(made, from + i, length);
        }
    }
    return FF_WHOLE;
}

static int is_ascii(const uint8_t *from, int64_t n)
{
    int all = 0;
    for (int64_t i = 0; i < n; i++)
        all |= from[i];
    return all < 128;
}

static void replace_text(const ff_rule *step, const uint8_t *from, int64_t n, ff_buffer *made)
{
    const uint8_t *end = from + n, *next;
    while ((next = memmem(from, (size_t)(end - from), step->old, (size_t)step->old_length))) {
        ff_put(made, from, next - from);
        ff_put(made, step->new, step->new_length);
        from = next + step->old_length;
        while (step->kind == FF_JOINED && from < end && *from == ' ')
            from++;
    }
    ff_put(made, from, end - from);
}

int ff_normalize(const ff_unigram *u, const uint8_t **from, int64_t *n, ff_buffer two[2])
{
    const uint8_t *given = *from;
    const int64_t length = *n;
    ff_buffer *made = two;
    int state = FF_WHOLE;
    for (int i = 0; i < u->step_count && state == FF_WHOLE; i++) {
        const ff_rule *step = &u->steps[i];
        made->length = 0;
        if (step->kind == FF_STRIPPED)
            *n = ff_drop_spaces(*from, 0, *n);
        else if (step->kind == FF_KEPT || step->kind == FF_LOWERED)
            state = is_ascii(*from, *n) ? FF_WHOLE : FF_ASKED;
        else if (step->kind == FF_MAPPED)
            state = map_graphemes(step, *from, *n, made);
        else
            replace_text(step, *from, *n, made);
        if (step->kind == FF_STRIPPED || step->kind == FF_KEPT)
            continue;
        if (step->kind == FF_LOWERED)
            ff_put(made, *from, *n);
        for (int64_t k = 0; step->kind == FF_LOWERED && k < made->length; k++)
            made->at[k] |= (uint32_t)made->at[k] - 'A' < 26 ? 32 : 0;
        *from = made->at, *n = made->length;
        made = made == two ? two + 1 : two;
    }
    if (state == FF_ASKED && u->ask) {
        two->length = 0;
        state = u->ask(u->context, given, length, two) ? FF_WHOLE : FF_ASKED;
        *from = two->at, *n = two->length;
    }
    return two[0].failed || two[1].failed ? FF_FULL : state;
}
