/* Put the pieces of Unigram into a trie. */
#include <stdlib.h>

#include "vocabulary.h"

enum { BLOCK = 256, OPEN = 4, BASES = 1 << 24 };  /* OPEN: blocks in which a node's children are tried */

typedef struct {
    uint64_t head;  /* the first 8 bytes, the first one highest */
    const uint8_t *at;
    uint32_t length;
    int32_t id;
} key;

typedef struct {
    key *keys;
    uint8_t *used;   /* (many) bits: 1 a unit that is taken, 2 a base that is taken */
    int16_t *left;   /* (many / BLOCK) free units of each block */
    int64_t room;    /* of units and used */
    int64_t first;   /* the first block that is tried */
} builder;

static int compare(const void *one, const void *other)
{
    const key *a = one, *b = other;
    if (a->head != b->head)
        return a->head < b->head ? -1 : 1;
    uint32_t n = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->at, b->at, n);
    return order ? order : a->length != b->length ? (a->length < b->length ? -1 : 1) : a->id - b->id;
}

static int grow(void **array, size_t bytes)
{
    void *more = realloc(*array, bytes);
    *array = more ? more : *array;
    return more != NULL;
}

static int add_block(ff_vocabulary *v, builder *b)
{
    if (v->many + BLOCK > BASES)
        return 0;
    if (v->many == b->room) {
        b->room = b->room ? 2 * b->room : 64 * BLOCK;
        size_t room = (size_t)b->room;
        if (!grow((void **)&v->units, room * sizeof *v->units) || !grow((void **)&b->used, room)
            || !grow((void **)&b->left, room / BLOCK * sizeof *b->left))
            return 0;
    }
    memset(b->used + v->many, 0, BLOCK);
    for (int i = 0; i < BLOCK; i++)  /* a free unit has no id and leads nowhere: block 0 is of nodes without children */
        v->units[v->many + i] = (uint64_t)UINT32_MAX << 32 | (uint8_t)~i;
    b->left[v->many / BLOCK] = BLOCK;
    v->many += BLOCK;
    return 1;
}

/* Find a free base in a block, under which the units of all labels (count) are free. Returns 0 if there is none. */
static uint32_t find_base(const builder *b, int64_t block, const uint8_t *labels, int count)
{
    for (int e = 0; e < BLOCK; e++) {
        const int64_t base = block + (e ^ labels[0]);
        int i = 0;
        if (b->used[block + e] & 1 || b->used[base] & 2)
            continue;
        while (i < count && !(b->used[base ^ labels[i]] & 1))
            i++;
        if (i == count)
            return (uint32_t)base;
    }
    return 0;
}

static uint32_t take_base(ff_vocabulary *v, builder *b, const uint8_t *labels, int count)
{
    uint32_t base = 0;
    int64_t block = b->first - BLOCK;
    while (!base) {
        block += BLOCK;
        if (block == v->many && !add_block(v, b))
            return 0;
        if (b->left[block / BLOCK] >= count)
            base = find_base(b, block, labels, count);
    }
    b->used[base] |= 2;
    b->left[block / BLOCK] = (int16_t)(b->left[block / BLOCK] - count);
    for (int i = 0; i < count; i++)
        b->used[base ^ labels[i]] |= 1;
    while (v->many - b->first > OPEN * BLOCK || (b->first < v->many && !b->left[b->first / BLOCK]))
        b->first += BLOCK;
    return base;
}

/* Make the node of the keys from `low` to `high`, which share `depth` bytes. Sets its base and id. Returns 0 if there
   is no room. */
static int make_node(ff_vocabulary *v, builder *b, int64_t low, int64_t high, uint32_t depth, uint32_t *base,
                     int32_t *id)
{
    uint8_t labels[BLOCK];
    int count = 0;
    *base = 0, *id = -1;
    for (; low < high && b->keys[low].length == depth; low++)
        *id = b->keys[low].id;
    if (*id >= 0)
        ff_count_length(v, b->keys[low - 1].at, depth);
    for (int64_t i = low; i < high; i++)
        if (!count || labels[count - 1] != b->keys[i].at[depth])
            labels[count++] = b->keys[i].at[depth];
    if (count && !(*base = take_base(v, b, labels, count)))
        return 0;
    for (int i = 0; i < count; i++) {
        uint32_t below;
        int32_t found;
        int64_t end = low;
        while (end < high && b->keys[end].at[depth] == labels[i])
            end++;
        if (!make_node(v, b, low, end, depth + 1, &below, &found))
            return 0;
        v->units[*base ^ labels[i]] = (uint64_t)(uint32_t)found << 32 | (uint64_t)below << 8 | labels[i];
        low = end;
    }
    return 1;
}

int ff_build_trie(ff_vocabulary *v, int64_t count)
{
    builder b = {.keys = malloc((size_t)count * sizeof *b.keys), .first = BLOCK};
    int state = b.keys && add_block(v, &b) ? FF_READ : FF_NO_MEMORY;  /* the first block is of nodes without children */
    v->count = count, v->largest = (int32_t)count - 1, v->least = v->scores[0], v->longest[0] = 4;
    for (int64_t i = 0; i < count && state == FF_READ; i++) {
        const ff_piece *p = &v->pieces[i];
        const uint8_t *at = v->letters + p->start;
        b.keys[i] = (key){0, at, p->length, (int32_t)i};
        for (uint32_t n = 0; n < 8; n++)
            b.keys[i].head = b.keys[i].head << 8 | (n < p->length ? at[n] : 0);
        v->longest[0] = (int32_t)p->length > v->longest[0] ? (int32_t)p->length : v->longest[0];
        v->least = v->scores[i] < v->least ? v->scores[i] : v->least;
    }
    if (state == FF_READ) {
        qsort(b.keys, (size_t)count, sizeof *b.keys, compare);
        state = make_node(v, &b, 0, count, 0, &v->root, &v->empty) ? FF_READ : FF_NO_MEMORY;
    }
    free(b.keys);
    free(b.used);
    free(b.left);
    free(v->pieces);
    free(v->letters);
    v->pieces = NULL, v->letters = NULL;
    return state;
}

int32_t ff_find_piece(const ff_vocabulary *v, const uint8_t *letters, int64_t n)
{
    uint32_t base = v->root;
    int32_t id = v->empty;
    for (int64_t i = 0; i < n; i++) {
        uint64_t unit = v->units[base ^ letters[i]];
        if ((uint8_t)unit != letters[i])
            return -1;
        base = (uint32_t)unit >> 8, id = (int32_t)(unit >> 32);
    }
    return id;
}
