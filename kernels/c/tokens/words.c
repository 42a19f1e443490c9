/* Turn one text into ids: normalize characters, gather them into words, and cut each word into the longest pieces from
   its start. A whole word, which is not cut, is a run of FF_WORD characters. */
#include "tokens.h"
#include "unicode.h"

enum { LETTER, DROPPED, SPACE, MARK };  /* kinds of ASCII characters */

typedef struct {
    const ff_tokenizer *w;
    ff_ids out;
    int32_t length, characters, fence;  /* of the current word: bytes, characters, bytes before which no mark moves */
    int32_t run, before;    /* if `whole` is not NULL: bytes and characters before the word's last run of FF_WORD */
    int joined;             /* 1: the punctuation before the word is FF_WORD */
    /* the word: its bytes before the run, and the run, each limited to FF_LONGEST characters */
    uint8_t word[2 * 4 * (FF_LONGEST + 1) + FF_SLACK];
} state;

static unsigned row_of(uint32_t c)
{
    unsigned unit = unicode_units[64 * unicode_blocks[c >> 10] + (c >> 4 & 63)];
    return unicode_classes[16 * unit + (c & 15)];
}

/* Write character c without accents to `to` (FF_EACH). Returns the number of characters; 0 if c is an accent. */
static int without_accents(uint32_t c, unsigned flags, uint32_t *to)
{
    if (c - 0xac00 < 11172) {  /* Hangul */
        uint32_t s = c - 0xac00;
        to[0] = 0x1100 + s / 588, to[1] = 0x1161 + s % 588 / 28, to[2] = 0x11a7 + s % 28;
        return 2 + (s % 28 > 0);
    }
    if (flags & FF_MARK)
        return 0;
    to[0] = c;
    if (!(flags & FF_SPLITS))
        return 1;
    int low = 0, high = FF_SPLITTING - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uint32_t)unicode_split[middle] < c)
            low = middle + 1;
        else
            high = middle;
    }
    int32_t found = unicode_to[low];
    if (found < FF_SEVERAL)
        return to[0] = (uint32_t)found, 1;
    const int32_t *more = unicode_more + (found - FF_SEVERAL);
    for (int i = 0; i < more[0]; i++)
        to[i] = (uint32_t)more[i + 1];
    return more[0];
}

int ff_character(int32_t c, int32_t row[3], int32_t split[FF_EACH])
{
    uint32_t to[FF_EACH] = {0};
    unsigned r = row_of((uint32_t)c);
    int count = without_accents((uint32_t)c, unicode_rows[r].flags, to);
    row[0] = unicode_rows[r].flags, row[1] = unicode_rows[r].order, row[2] = c + unicode_rows[r].lower;
    for (int i = 0; i < FF_EACH; i++)
        split[i] = (int32_t)to[i];
    return count;
}

/* Cut word (length) into pieces' ids. Returns their number; 0 if some part begins with no piece. */
static int cut_word(const ff_vocabulary *v, const uint8_t *word, int32_t length, int32_t *ids)
{
    int count = 0;
    for (int32_t start = 0; start < length;) {
        int kind = start ? FF_LATER_PIECE : FF_FIRST_PIECE;
        int32_t id = -1, n = length - start < v->longest[kind] ? length - start : v->longest[kind];
        for (; n > 0; n--)
            if (start + n == length || word[start + n] >> 6 != 2)  /* not inside a character */
                if ((id = ff_find(v, word + start, n, kind)) >= 0)
                    break;
        if (id < 0)
            return 0;
        ids[count++] = id;
        start += n;
    }
    return count;
}

/* Write the ids of the word's first `length` bytes, or the unknown id, and begin the next word. */
static void put_word(state *s, int32_t length, int32_t characters)
{
    int32_t pieces[FF_LONGEST];
    int count = 0;
    if (characters) {
        if (characters <= s->w->longest)
            count = cut_word(s->w->words, s->word, length, pieces);
        ff_put_ids(&s->out, count ? pieces : &s->w->unknown, count ? count : 1);
    }
    s->length = s->characters = s->fence = s->run = s->before = 0;
}

/* If the word's last run is a whole word, write the ids before the run, then its id. `joins`: FF_WORD follows. */
static void end_run(state *s, int joins)
{
    int32_t length = s->length - s->run;
    if (!length || joins || (s->joined && !s->before))
        return;
    int32_t id = ff_find(s->w->whole, s->word + s->run, length, FF_FIRST_PIECE);
    if (id >= 0) {
        put_word(s, s->run, s->before);
        ff_put_ids(&s->out, &id, 1);
        s->joined = 0;
    }
}

static void end_word(state *s, int joins)
{
    if (s->w->whole)
        end_run(s, joins);
    put_word(s, s->length, s->characters);
    s->joined = joins;
}

/* Add a character to the word, before trailing marks with a higher canonical class. */
static void add(state *s, uint32_t c, unsigned order)
{
    if (s->characters - s->before > s->w->longest)  /* too long already: the word is unknown */
        return;
    int32_t at = s->length;
    int before;
    while (order && at > s->fence && unicode_rows[row_of(ff_read_before(s->word, at, &before))].order > order)
        at -= before;
    uint8_t bytes[4];
    int n = ff_put_utf8(bytes, c);
    memmove(s->word + at + n, s->word + at, (size_t)(s->length - at));
    memcpy(s->word + at, bytes, (size_t)n);
    s->length += n;
    s->characters++;
}

/* Add a character that ends a run of FF_WORD. Too long a word keeps only its number of characters. */
static void add_sign(state *s, uint32_t c)
{
    end_run(s, 0);
    if (s->characters > s->w->longest)
        s->length = s->fence = 0, s->characters = s->w->longest + 1;
    else
        add(s, c, 0);
    s->run = s->length, s->before = s->characters;
}

static void put_punctuation(state *s, uint32_t c, unsigned flags)
{
    end_word(s, (flags & FF_WORD) > 0);
    add(s, c, 0);
    put_word(s, s->length, s->characters);
}

static void add_lowered(state *s, uint32_t c)
{
    unsigned row = row_of(c), order = s->w->steps & FF_STRIP ? unicode_rows[row].order : 0;
    if (s->w->steps & FF_LOWER && unicode_rows[row].lower) {
        c += (uint32_t)unicode_rows[row].lower;
        row = row_of(c);
    }
    unsigned flags = unicode_rows[row].flags;
    if (flags & FF_PUNCTUATION)
        put_punctuation(s, c, flags);
    else if (s->w->whole && !(flags & FF_WORD))
        add_sign(s, c);
    else
        add(s, c, order);
}

static void normalize(state *s, uint32_t c)
{
    unsigned flags = unicode_rows[row_of(c)].flags, steps = (unsigned)s->w->steps;
    int apart = flags & FF_IDEOGRAPH && steps & FF_IDEOGRAPHS;
    if (flags & FF_CONTROL && steps & FF_CLEAN)
        return;
    if (flags & FF_WHITE || apart)
        end_word(s, 0);
    if (flags & FF_WHITE)
        return;
    if (c == 0x130 && !(steps & FF_STRIP) && steps & FF_LOWER) {  /* its lower case is two characters */
        add_lowered(s, 'i');
        add_lowered(s, 0x307);
    } else if (steps & FF_STRIP) {
        uint32_t split[FF_EACH];
        int count = without_accents(c, flags, split);
        for (int i = 0; i < count; i++)
            add_lowered(s, split[i]);
        if (flags & FF_FENCE)
            s->fence = s->length;
    } else
        add_lowered(s, c);
    if (apart)
        end_word(s, 0);
}

static void beyond_ascii(state *s, uint32_t c)
{
    if (!(s->w->steps & FF_LOWER_FIRST))
        normalize(s, c);
    else if (c == 0x130) {
        normalize(s, 'i');
        normalize(s, 0x307);
    } else
        normalize(s, c + (uint32_t)unicode_rows[row_of(c)].lower);
}

static void ascii(state *s, uint32_t c)
{
    int kind = s->w->kinds[c] & ~FF_ADDED;
    if (kind == LETTER)
        normalize(s, s->w->steps & FF_LOWER_FIRST && c - 'A' < 26 ? c + 32 : c);
    else if (kind == SPACE)
        end_word(s, 0);
    else if (kind == MARK)
        put_punctuation(s, c, unicode_rows[row_of(c)].flags);
}

void ff_prepare_letters(ff_tokenizer *w)
{
    for (int c = 0; c < 128; c++) {
        const int lower = w->steps & (FF_LOWER | FF_LOWER_FIRST) ? unicode_rows[row_of((uint32_t)c)].lower : 0;
        const unsigned flags = unicode_rows[row_of((uint32_t)c)].flags;
        w->kinds[c] = flags & FF_CONTROL && w->steps & FF_CLEAN ? DROPPED : flags & FF_WHITE ? SPACE
                      : flags & FF_PUNCTUATION ? MARK : LETTER;
        w->letters[c] = w->kinds[c] == LETTER ? (uint8_t)(c + lower) : 0;
    }
    for (int i = 0; i < w->added_count; i++) {
        w->kinds[w->added[i].letters[0]] |= FF_ADDED;
        w->letters[w->added[i].letters[0]] = 0;  /* 0: reading stops here and tries added tokens */
    }
    for (int i = 0; w->unigram && i < w->unigram->later_count; i++)
        w->kinds[w->unigram->later[i].letters[0]] |= FF_LATER;
}

#define BODY "text.inc"
#include "widths.inc"

int ff_flags(uint32_t c)
{
    return unicode_rows[row_of(c)].flags;
}

int ff_tokenize_words(const ff_tokenizer *w, const ff_text *text, ff_ids *out)
{
    state s;
    s.w = w, s.out = *out;
    s.length = s.characters = s.fence = s.run = s.before = s.joined = 0;
    read_text(&s, text, 0);
    *out = s.out;
    return out->half ? FF_HALF : out->cut ? FF_CUT : FF_WHOLE;
}
