/* Read the pieces and scores in a tokenizer's JSON file into a trie. */
#include <stdlib.h>

#include "pieces.h"

enum { BLOCK = 256, OPEN = 4, BASES = 1 << 24, DIGITS = 32 };  /* OPEN: blocks in which a node's children are tried */

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

/* Read a number as serde_json does, which rounds twice: the digits as a double, then times or by a power of ten.
   Returns 0 if it is not a JSON number, or has more digits or a larger power than fit. */
static int number(ff_reader *r, double *value)
{
    static const double powers[DIGITS] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
        1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31};
    uint64_t digits = 0;
    int c = ff_next(r), negative = c == '-', power = 0, shift = 0, point = 0, zero, read = 0;
    if (negative)
        c = r->at < r->end ? *r->at++ : -1;
    zero = c == '0';
    for (;; c = r->at < r->end ? *r->at++ : -1) {
        if (c == '.' && !point && read)
            point = 1, read = 0;
        else if (c >= '0' && c <= '9') {
            if (digits > (UINT64_MAX - 9) / 10 || (zero && read && !point))
                return 0;
            digits = 10 * digits + (uint64_t)(c - '0');
            read++, shift -= point;
        } else
            break;
    }
    if (!read)
        return 0;
    if (c == 'e' || c == 'E') {
        int sign = r->at < r->end && (*r->at == '-' || *r->at == '+') ? *r->at++ : '+';
        for (read = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9' && read < 4; read++)
            power = 10 * power + *r->at++ - '0';
        if (!read)
            return 0;
        shift += sign == '-' ? -power : power;
    } else if (c >= 0)
        r->at--;
    if (shift <= -DIGITS || shift >= DIGITS)
        return 0;
    double found = shift < 0 ? (double)digits / powers[-shift] : (double)digits * powers[shift];
    *value = negative ? -found : found;
    return 1;
}

/* Read the pairs up to the end of the array into keys and p->scores, which have room. Returns their number, or -1. */
static int64_t read_pairs(ff_pieces *p, ff_reader *r, uint8_t *to, key *keys)
{
    int64_t count = 0;
    if (ff_next(r) != '[')
        return -1;
    int c = ff_next(r);
    for (; c == '['; count++) {
        int64_t n = ff_next(r) == '"' ? ff_read_string(r, to) : -1;
        if (n < 0 || n > FF_LONGEST_PIECE || ff_next(r) != ',' || !number(r, &p->scores[count]) || ff_next(r) != ']')
            return -1;
        p->longest = (int32_t)n > p->longest ? (int32_t)n : p->longest;
        keys[count] = (key){0, to, (uint32_t)n, (int32_t)count};
        for (int i = 0; i < 8; i++)
            keys[count].head = keys[count].head << 8 | (i < n ? to[i] : 0);
        to += n;
        int comma = ff_next(r);
        c = comma == ',' ? ff_next(r) : comma;
        if (c != (comma == ',' ? '[' : ']'))
            return -1;
    }
    return c == ']' ? count : -1;
}

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

static int add_block(ff_pieces *p, builder *b)
{
    if (p->many + BLOCK > BASES)
        return 0;
    if (p->many == b->room) {
        b->room = b->room ? 2 * b->room : 64 * BLOCK;
        size_t room = (size_t)b->room;
        if (!grow((void **)&p->units, room * sizeof *p->units) || !grow((void **)&b->used, room)
            || !grow((void **)&b->left, room / BLOCK * sizeof *b->left))
            return 0;
    }
    memset(b->used + p->many, 0, BLOCK);
    b->left[p->many / BLOCK] = BLOCK;
    p->many += BLOCK;
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

static uint32_t take_base(ff_pieces *p, builder *b, const uint8_t *labels, int count)
{
    uint32_t base = 0;
    int64_t block = b->first - BLOCK;
    while (!base) {
        block += BLOCK;
        if (block == p->many && !add_block(p, b))
            return 0;
        if (b->left[block / BLOCK] >= count)
            base = find_base(b, block, labels, count);
    }
    b->used[base] |= 2;
    b->left[block / BLOCK] = (int16_t)(b->left[block / BLOCK] - count);
    for (int i = 0; i < count; i++)
        b->used[base ^ labels[i]] |= 1;
    while (p->many - b->first > OPEN * BLOCK || (b->first < p->many && !b->left[b->first / BLOCK]))
        b->first += BLOCK;
    return base;
}

/* Make the node of the keys from `low` to `high`, which share `depth` bytes. Sets its base and id. Returns 0 if there
   is no room. */
static int make_node(ff_pieces *p, builder *b, int64_t low, int64_t high, uint32_t depth, uint32_t *base, int32_t *id)
{
    uint8_t labels[BLOCK];
    int count = 0;
    *base = 0, *id = -1;
    for (; low < high && b->keys[low].length == depth; low++)
        *id = b->keys[low].id;
    for (int64_t i = low; i < high; i++)
        if (!count || labels[count - 1] != b->keys[i].at[depth])
            labels[count++] = b->keys[i].at[depth];
    if (count && !(*base = take_base(p, b, labels, count)))
        return 0;
    for (int i = 0; i < count; i++) {
        uint32_t below;
        int32_t found;
        int64_t end = low;
        while (end < high && b->keys[end].at[depth] == labels[i])
            end++;
        if (!make_node(p, b, low, end, depth + 1, &below, &found))
            return 0;
        p->units[*base ^ labels[i]] = (uint64_t)(uint32_t)found << 32 | (uint64_t)below << 8 | labels[i];
        low = end;
    }
    return 1;
}

/* Give free units a label by which no node takes them: in each block with a free unit, some base is free. */
static void close_blocks(ff_pieces *p, const builder *b)
{
    for (int64_t block = 0; block < p->many; block += BLOCK) {
        int64_t base = block;
        while (block && b->used[base] & 2 && base < block + BLOCK - 1)
            base++;
        for (int64_t i = block; i < block + BLOCK; i++)
            if (!(b->used[i] & 1))
                p->units[i] = (uint64_t)UINT32_MAX << 32 | (uint8_t)(block ? i ^ base : ~i);
    }
}

static int build(ff_pieces *p, builder *b, int64_t count)
{
    qsort(b->keys, (size_t)count, sizeof *b->keys, compare);
    if (!add_block(p, b))  /* the first block is of the nodes without children */
        return FF_NO_MEMORY;
    b->first = BLOCK;
    if (!make_node(p, b, 0, count, 0, &p->root, &p->empty))
        return FF_NO_MEMORY;
    close_blocks(p, b);
    return FF_READ;
}

/* Count the different pieces of each length, from the sorted keys (count). */
static void count_lengths(ff_pieces *p, const key *keys, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int characters = 0;
        const key *k = &keys[i];
        if (i + 1 < count && k->length == k[1].length && !memcmp(k->at, k[1].at, k->length))
            continue;
        for (uint32_t j = 0; j < k->length; j++)
            characters += k->at[j] >> 6 != 2;
        p->lengths[characters]++;
    }
}

int ff_read_pieces(ff_pieces *p, const uint8_t *json, int64_t length, int64_t *end)
{
    ff_reader r = {json, json + length};
    memset(p, 0, sizeof *p);
    p->longest = 4;
    if (length >= INT32_MAX)
        return FF_ODD;
    size_t most = (size_t)length / 6 + 1;  /* a pair has at least 6 bytes: ["",0] */
    uint8_t *letters = malloc((size_t)length + FF_SLACK);
    builder b = {.keys = malloc(most * sizeof *b.keys)};
    p->scores = malloc(most * sizeof *p->scores);
    int state = FF_NO_MEMORY;
    if (letters && b.keys && p->scores) {
        p->count = read_pairs(p, &r, letters, b.keys);
        state = p->count > 0 ? build(p, &b, p->count) : FF_ODD;
    }
    *end = r.at - json;
    if (state == FF_READ) {
        p->least = p->scores[0];
        for (int64_t i = 1; i < p->count; i++)
            p->least = p->scores[i] < p->least ? p->scores[i] : p->least;
        count_lengths(p, b.keys, p->count);
    }
    free(letters);
    free(b.keys);
    free(b.used);
    free(b.left);
    return state;
}

void ff_free_pieces(ff_pieces *p)
{
    free(p->units);
    free(p->scores);
}

int32_t ff_find_piece(const ff_pieces *p, const uint8_t *letters, int64_t n)
{
    uint32_t base = p->root;
    int32_t id = p->empty;
    for (int64_t i = 0; i < n; i++) {
        uint64_t unit = p->units[base ^ letters[i]];
        if ((uint8_t)unit != letters[i])
            return -1;
        base = (uint32_t)unit >> 8, id = (int32_t)(unit >> 32);
    }
    return id;
}
