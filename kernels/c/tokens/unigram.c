/* Turn one text into ids by Unigram: cut it at added tokens, normalize the parts, and cut their words into the pieces
   with the largest sum of scores. */
#include <stdlib.h>

#include "normalize.h"

enum { NODES = 512, CHUNK = 4096 };  /* nodes without asking for memory; least bytes that are normalized together */
enum { BEGINS = 1, ENDS = 2 };       /* flags: the part of a text begins or ends here */

typedef struct {
    double score;  /* of the best pieces up to the node */
    int32_t id;    /* of the last piece */
    int32_t from;  /* the node before it, in bytes; -1: none has come here */
} node;

typedef struct {
    const ff_tokenizer *t;
    const ff_unigram *u;
    ff_ids out;
    int state;            /* FF_WHOLE, FF_ASKED or FF_FULL */
    int first;            /* 1: nothing of the text is before the part */
    int64_t unknown;      /* byte at which a run of unknown characters begins; -1: none */
    ff_buffer given, made, word;
    node *nodes, own[NODES];
    int64_t room, clean;  /* of nodes; nodes that are initialized */
} state;

/* Initialize `count` nodes. Returns 0 if memory is short. */
static int clean_nodes(state *s, int64_t count)
{
    if (count > s->room) {
        node *nodes = realloc(s->nodes == s->own ? NULL : s->nodes, 2 * (size_t)count * sizeof *nodes);
        if (!nodes)
            return s->state = FF_FULL, 0;
        if (s->nodes == s->own)
            memcpy(nodes, s->own, sizeof s->own);
        s->nodes = nodes, s->room = 2 * count;
    }
    while (s->clean < count)
        s->nodes[s->clean++].from = -1;
    return 1;
}

/* Write the ids of the unknown run that ends before byte `end` of the word. */
static void end_unknown(state *s, int64_t end)
{
    const uint8_t *run = s->word.at + s->unknown;
    int64_t n = end - s->unknown;
    int32_t id = n <= FF_LONGEST_PIECE ? ff_find_piece(s->u->pieces, run, n) : -1;
    int known = id < 0 && s->u->bytes;
    for (int64_t i = 0; known && i < n; i++)
        known = s->u->bytes[run[i]] >= 0;
    for (int64_t i = 0; known && i < n; i++)
        ff_put_ids(&s->out, &s->u->bytes[run[i]], 1);
    if (!known)
        ff_put_ids(&s->out, id < 0 ? &s->u->unknown : &id, 1);
    s->unknown = -1;
}

/* Write the ids of the best pieces between the nodes 0 and `last`, which are at byte `base` of the word and later. */
static void put_best(state *s, int64_t base, int64_t last)
{
    node *nodes = s->nodes;
    int32_t next = 0;
    for (int32_t at = (int32_t)last; at;) {
        int32_t from = nodes[at].from;
        nodes[at].from = next;
        next = at;
        at = from;
    }
    for (int32_t start = 0; next; start = next, next = nodes[next].from) {
        if (nodes[next].id == s->u->unknown) {
            s->unknown = s->unknown < 0 ? base + start : s->unknown;
            continue;
        }
        if (s->unknown >= 0)
            end_unknown(s, base + start);
        ff_put_ids(&s->out, &nodes[next].id, 1);
    }
}

static inline void arrive(node *to, double score, int32_t id, int64_t from)
{
    if (to->from < 0 || score > to->score)
        *to = (node){score, id, (int32_t)from};
}

/* Write the ids of the word, and empty it. At a byte that no piece crosses, the best pieces before it are known. */
static void end_word(state *s)
{
    const ff_pieces *p = s->u->pieces;
    const uint64_t *units = p->units;
    const uint8_t *word = s->word.at;
    const int64_t n = s->word.length;
    int64_t base = 0, furthest = 0;
    s->nodes[0].score = 0;
    for (int64_t at = 0, size; at < n && !s->out.cut; at += size) {
        size = ff_utf8_length(word[at]);
        if (at == furthest && at > base) {
            double score = s->nodes[at - base].score;
            put_best(s, base, at - base);
            for (int64_t i = 1; i <= at - base; i++)
                s->nodes[i].from = -1;
            s->nodes[0].score = score;
            base = at;
        }
        if (at - base + p->longest >= s->clean && !clean_nodes(s, at - base + p->longest + 1))
            return;
        node *here = s->nodes + (at - base);
        const double score = here->score;
        uint32_t below = p->root;
        int64_t end = at;
        int single = 0;
        while (end < n) {
            const uint8_t byte = word[end];
            const uint64_t unit = units[below ^ byte];
            if ((uint8_t)unit != byte)
                break;
            end++;
            below = (uint32_t)unit >> 8;
            const int32_t id = (int32_t)(unit >> 32);
            if (id < 0)
                continue;
            arrive(here + (end - at), p->scores[id] + score, id, at - base);
            furthest = end > furthest ? end : furthest;
            single |= end - at == size;
        }
        if (!single) {
            arrive(here + size, s->u->unknown_score + score, s->u->unknown, at - base);
            furthest = at + size > furthest ? at + size : furthest;
        }
    }
    if (!s->out.cut)
        put_best(s, base, n - base);
    for (int64_t i = 1; i <= furthest - base; i++)
        s->nodes[i].from = -1;
    if (s->unknown >= 0)
        end_unknown(s, n);
    s->unknown = -1;
    s->word.length = 0;
}

enum { WHITE = 1, MARK };

/* Say whether the character at `from` is white space that ends a word, or a ▁ or what becomes one; 0: neither. */
static int find_break(const ff_unigram *u, const uint8_t *from, int *length)
{
    uint32_t lower, c = ff_read_utf8(from, length);
    if (u->words && ff_flags(c, &lower) & FF_WHITE)
        return WHITE;
    return u->marked && (c == ' ' || c == 0x2581) ? MARK : 0;
}

/* Split a normalized part into words: at white space, before each ▁, or not at all. `begins`: no chunk is before. */
static void split_words(state *s, const uint8_t *from, int64_t n, int begins)
{
    static const uint8_t mark[] = {0xe2, 0x96, 0x81};  /* ▁ */
    const ff_unigram *u = s->u;
    const int prefixed = u->before == FF_EVERYWHERE || (u->before == FF_AT_START && s->first);
    int fresh = begins;
    for (int64_t i = 0, start = 0; i < n && !s->out.cut; start = i) {
        int found = 0, length;
        for (; i < n; i += length) {
            length = 1;
            if (u->breaks[from[i]] && (found = find_break(u, from + i, &length)))
                break;
        }
        if (i > start) {
            if (fresh && prefixed)
                ff_put(&s->word, mark, 3);
            ff_put(&s->word, from + start, i - start);
            fresh = 0;
        }
        if (s->word.length && (found == WHITE || (found == MARK && u->splits)))
            end_word(s);
        if (found == MARK)
            ff_put(&s->word, mark, 3);
        fresh = found == WHITE || (fresh && !found);
        i += found ? length : 0;
    }
    if (s->word.length && !s->out.cut)
        end_word(s);
    s->word.length = 0;
}

/* Return the bytes of the white space before byte `end`; 0: none is there. */
static int space_before(const ff_buffer *b, int64_t end)
{
    int length;
    uint32_t lower;
    return end > 0 && ff_flags(ff_read_before(b->at, end, &length), &lower) & FF_WHITE ? length : 0;
}

/* Find added tokens in a normalized part, and split what is between them. */
static void find_later(state *s, const ff_buffer *b, int begins)
{
    int64_t start = 0;
    for (int64_t i = 0; i < b->length && s->u->later_count && !s->out.cut; i++) {
        const ff_added *found = NULL;
        if (b->at[i] >= 128 || !(s->t->kinds[b->at[i]] & FF_LATER))
            continue;
        for (int a = 0; a < s->u->later_count && !found; a++)
            FF_FIND_ADDED(found, &s->u->later[a], b->at + i, b->length - i);
        if (!found)
            continue;
        int64_t end = i;
        int space;
        while (found->takes & FF_SPACES_BEFORE && end > start && (space = space_before(b, end)))
            end -= space;
        split_words(s, b->at + start, end - start, begins || start);
        ff_put_ids(&s->out, &found->id, 1);
        i += found->length - 1;
        start = i + 1;
    }
    split_words(s, b->at + start, b->length - start, begins || start);
}

/* Write the ids of s->given, and empty it. `ends`: whether the part of the text begins and ends with it. */
static void end_chunk(state *s, int ends, int ready)
{
    ff_buffer *from = &s->given, *to = &s->made;
    for (int i = 0; i < s->u->step_count && !ready && s->state == FF_WHOLE; i++) {
        to->length = 0;
        s->state = ff_normalize(&s->u->steps[i], from, to, ends);
        ff_buffer *other = from;
        from = to, to = other;
    }
    if (s->state == FF_WHOLE && !s->out.cut)
        find_later(s, from, ends & BEGINS);
    if (from->failed || to->failed || s->word.failed)
        s->state = FF_FULL;
    s->given.length = 0;
}

static int is_plain(uint32_t c)
{
    return c - '0' < 10 || (c | 32) - 'a' < 26;
}

#define BODY "unigram.inc"
#include "widths.inc"

int ff_tokenize_unigram(const ff_tokenizer *t, const ff_text *text, ff_ids *out)
{
    state s;
    s.t = t, s.u = t->unigram, s.out = *out;
    s.state = FF_WHOLE, s.unknown = -1, s.first = text->ready < 2;
    s.nodes = s.own, s.room = NODES, s.clean = 0;
    ff_open_buffer(&s.given);
    ff_open_buffer(&s.made);
    ff_open_buffer(&s.word);
    if (text->width == 1)
        read_bytes(&s, text->letters, text->length, text->ready);
    else if (text->width == 2)
        read_halves(&s, text->letters, text->length, text->ready);
    else
        read_words(&s, text->letters, text->length, text->ready);
    ff_close_buffer(&s.given);
    ff_close_buffer(&s.made);
    ff_close_buffer(&s.word);
    if (s.nodes != s.own)
        free(s.nodes);
    *out = s.out;
    return out->half ? FF_HALF : s.state != FF_WHOLE ? s.state : out->cut ? FF_CUT : FF_WHOLE;
}
