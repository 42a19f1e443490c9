/* The pieces of a vocabulary in a hash table. It is ready in a millisecond, which a trie of 30,000 pieces is not, and a
   whole word, as most are, is one look-up. */
#ifndef FASTFLOW_VOCABULARY_H
#define FASTFLOW_VOCABULARY_H

#include <string.h>

#include "cpu.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the hash masks the last bytes of a number");

enum { FF_FIRST_PIECE, FF_LATER_PIECE };  /* one that begins a word, and one that continues it */
enum { FF_SLACK = 8 };  /* bytes after letters that are looked up: they are read in whole numbers of 64 bits */

typedef struct {
    uint32_t start, length;  /* of its bytes in `letters`; a later one without its prefix */
    int32_t id, kind;
} ff_piece;

typedef struct {
    uint8_t *letters;
    ff_piece *pieces;
    uint64_t *slots;    /* the number of a piece, less 1, below the upper half of its hash; 0 if it is free */
    uint64_t mask;      /* slots, less 1 */
    int64_t count;      /* different pieces */
    int32_t largest;    /* id */
    int32_t longest[2]; /* bytes of a piece of each kind */
} ff_vocabulary;

enum { FF_READ, FF_ODD, FF_NO_MEMORY };
/* vocabulary.c: the JSON object of pieces and ids at the start of `length` bytes, and its own length to *end; of a piece
   that comes twice the last id. A piece that begins with ## continues a word. FF_ODD: it is anything else, or made to fill
   the table badly. */
int ff_read_vocabulary(ff_vocabulary *v, const uint8_t *json, int64_t length, int64_t *end);
void ff_free_vocabulary(ff_vocabulary *v);
int ff_put_utf8(uint8_t *to, uint32_t c);  /* returns the bytes that it wrote, 1 to 4 */

/* The first n bytes, at most 8 and at least 1, as a number. */
static inline uint64_t ff_bytes(const uint8_t *letters, int64_t n)
{
    uint64_t x;
    memcpy(&x, letters, 8);
    return n < 8 ? x & ~(~(uint64_t)0 << 8 * n) : x;
}

static inline uint64_t ff_hash(const uint8_t *letters, int64_t n, int kind)
{
    uint64_t h = (uint64_t)n << 1 | (uint64_t)kind;
    for (;; letters += 8, n -= 8) {
        h = (h ^ ff_bytes(letters, n)) * 0x9e3779b97f4a7c15u;  /* 2^64 over the golden ratio: odd, bits all over */
        h ^= h >> 32;
        if (n <= 8)
            return h;
    }
}

static inline int ff_same(const uint8_t *a, const uint8_t *b, int64_t n)
{
    for (; n > 8; a += 8, b += 8, n -= 8)
        if (ff_bytes(a, 8) != ff_bytes(b, 8))
            return 0;
    return ff_bytes(a, n) == ff_bytes(b, n);
}

/* The slot of the piece with these bytes, at least one, or the free one in which it would be. */
static inline uint64_t ff_slot(const ff_vocabulary *v, const uint8_t *letters, int64_t n, int kind)
{
    uint64_t h = ff_hash(letters, n, kind), at = h & v->mask;
    for (; v->slots[at]; at = (at + 1) & v->mask) {
        if ((v->slots[at] ^ h) >> 32)
            continue;
        const ff_piece *p = &v->pieces[(uint32_t)v->slots[at] - 1];
        if (p->length == n && p->kind == kind && ff_same(v->letters + p->start, letters, n))
            break;
    }
    return at;
}

/* The id of the piece with these n >= 1 bytes, FF_SLACK more of which may be read; -1 if there is none. */
static inline int32_t ff_find(const ff_vocabulary *v, const uint8_t *letters, int64_t n, int kind)
{
    uint64_t slot = v->slots[ff_slot(v, letters, n, kind)];
    return slot ? v->pieces[(uint32_t)slot - 1].id : -1;
}

#endif
