/* Turn one text into ids by Unigram: cut it at added tokens, normalize the parts, and cut their words into the pieces
   with the largest sum of scores. */
#include <stdlib.h>

#include "normalize.h"

enum { NODES = 512, CHUNK = 4096 };  /* nodes without asking for memory; least bytes that are normalized together */
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
    int64_t unknown;      /* byte at which a run of unknown characters begins; -1: none */
    ff_buffer given, two[2], word;  /* a chunk; its normalized parts; a word */
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

/* Write the id of the unknown run that ends before byte `end` of the word. */
static void end_unknown(state *s, int64_t end)
{
    int32_t id = ff_find_piece(s->t->words, s->word.at + s->unknown, end - s->unknown);
    ff_put_ids(&s->out, id < 0 ? &s->t->unknown : &id, 1);
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
        if (nodes[next].id == s->t->unknown) {
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
    const ff_vocabulary *p = s->t->words;
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
        if (at - base + p->longest[0] >= s->clean && !clean_nodes(s, at - base + p->longest[0] + 1))
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
            arrive(here + size, (p->least - 10) + score, s->t->unknown, at - base);
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
static const uint8_t mark[] = {0xe2, 0x96, 0x81};  /* ▁ */

/* Say whether the character at `from` is white space that ends a word, or a ▁ or what becomes one; 0: neither. */
static int find_break(const ff_unigram *u, const uint8_t *from, int *length)
{
    uint32_t c = ff_read_utf8(from, length);
    if (u->words && ff_flags(c) & FF_WHITE)
        return WHITE;
    return c == ' ' || c == 0x2581 ? MARK : 0;
}

/* Split normalized letters (n) into words, at white space and before ▁. `begins`: no chunk of the part is before. */
static void split_words(state *s, const uint8_t *from, int64_t n, int begins)
{
    static const uint8_t breaks[256] = {  /* first bytes of white space and ▁ */
        ['\t'] = 1, ['\n'] = 1, ['\v'] = 1, ['\f'] = 1, ['\r'] = 1, [' '] = 1,
        [0xc2] = 1, [0xe1] = 1, [0xe2] = 1, [0xe3] = 1};
    int fresh = begins, found = 0, length = 0;
    for (int64_t i = 0, start = 0; i < n && !s->out.cut; start = i, found = 0) {
        for (; i < n; i += length) {
            length = 1;
            if (breaks[from[i]] && (found = find_break(s->u, from + i, &length)))
                break;
        }
        if (i > start && fresh)
            ff_put(&s->word, mark, 3);
        ff_put(&s->word, from + start, i - start);
        if (s->word.length)
            end_word(s);
        if (found == MARK)
            ff_put(&s->word, mark, 3);
        fresh = found == WHITE;
        i += found ? length : 0;
    }
    if (s->word.length && !s->out.cut)
        end_word(s);
    s->word.length = 0;
}

static void split_tokens(state *s, const uint8_t *from, int64_t n, int later, int begins);

/* Write the ids of letters (n) between added tokens; `later`: they are normalized. */
static void put_part(state *s, const uint8_t *from, int64_t n, int later, int begins)
{
    if (later)
        split_words(s, from, n, begins);
    else if (n && !s->out.cut && (s->state = ff_normalize(s->u, &from, &n, s->two)) == FF_WHOLE)
        split_tokens(s, from, n, 1, begins);
}

/* Write the ids of letters (n): of added tokens, found before normalization or `later`, and of the parts between. */
static void split_tokens(state *s, const uint8_t *from, int64_t n, int later, int begins)
{
    const ff_added *added = later ? s->u->later : s->t->added, *found;
    const int count = later ? s->u->later_count : s->t->added_count, kind = later ? FF_LATER : FF_ADDED;
    int64_t start = 0;
    for (int64_t i = 0; count && i < n && !s->out.cut && s->state == FF_WHOLE; i++) {
        if (from[i] >= 128 || !(s->t->kinds[from[i]] & kind))
            continue;
        FF_FIND_ADDED(found, added, count, from + i, n - i);
        if (!found)
            continue;
        int64_t end = found->takes ? ff_drop_spaces(from, start, i) : i;
        put_part(s, from + start, end - start, later, begins || start);
        ff_put_ids(&s->out, &found->id, 1);
        start = i + found->length;
        i = start - 1;
    }
    if (s->state == FF_WHOLE)
        put_part(s, from + start, n - start, later, begins || start);
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
    s.state = FF_WHOLE, s.unknown = -1;
    s.nodes = s.own, s.room = NODES, s.clean = 0;
    ff_buffer *buffers[] = {&s.given, s.two, s.two + 1, &s.word};
    for (int i = 0; i < 4; i++)
        ff_open_buffer(buffers[i]);
    for (int64_t i = 0, first = 0; i < text->length && s.state == FF_WHOLE; first = i) {
        i = read_text(&s, text, i);
        if (!s.out.half && !s.out.cut)
            split_tokens(&s, s.given.at, s.given.length, 0, first == 0);
        if (s.given.failed || s.word.failed)
            s.state = FF_FULL;
    }
    for (int i = 0; i < 4; i++)
        ff_close_buffer(buffers[i]);
    if (s.nodes != s.own)
        free(s.nodes);
    *out = s.out;
    return out->half ? FF_HALF : s.state != FF_WHOLE ? s.state : out->cut ? FF_CUT : FF_WHOLE;
}
