#ifndef FASTFLOW_VOCABULARY_H
#define FASTFLOW_VOCABULARY_H

#include <string.h>

#include "cpu.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the hash masks the last bytes of a number");

enum { FF_FIRST_PIECE, FF_LATER_PIECE };  /* begins a word; continues it */
enum { FF_SLACK = 8 };  /* bytes after a looked-up piece that must be readable */

typedef struct {
    uint32_t start, length;  /* of the piece in `letters`, without ## */
    int32_t id, kind;
} ff_piece;

typedef struct {
    uint8_t *letters;
    ff_piece *pieces;
    uint64_t *slots;    /* (mask + 1) upper half of a hash, and the piece's number + 1; 0: free */
    uint64_t mask;
    int64_t count;      /* different pieces */
    int32_t largest;
    int32_t longest[2]; /* most bytes of each kind of piece */
} ff_vocabulary;

enum { FF_READ, FF_ODD, FF_NO_MEMORY };
/* Read a JSON object of pieces and ids at the start of json (length); set *end to its length. The last of repeated
   pieces counts. FF_ODD: invalid JSON, or colliding pieces. */
int ff_read_vocabulary(ff_vocabulary *v, const uint8_t *json, int64_t length, int64_t *end);
void ff_free_vocabulary(ff_vocabulary *v);
int ff_put_utf8(uint8_t *to, uint32_t c);  /* returns the bytes written, 1 to 4 */

typedef struct {
    const uint8_t *at, *end;  /* JSON that is left */
} ff_reader;

int ff_next(ff_reader *r);  /* the next byte that is not white space; -1 at the end */
int64_t ff_read_string(ff_reader *r, uint8_t *to);  /* copies a string after its quote; returns its bytes, or -1 */

/* The first min(n, 8) bytes as a number, n >= 1. */
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
        h = (h ^ ff_bytes(letters, n)) * 0x9e3779b97f4a7c15u;  /* an odd factor with well spread bits */
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

/* The slot of a piece (n), or the free slot that it would take. n >= 1. */
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

/* The id of a piece (n; FF_SLACK bytes more are readable), n >= 1; -1: none. */
static inline int32_t ff_find(const ff_vocabulary *v, const uint8_t *letters, int64_t n, int kind)
{
    uint64_t slot = v->slots[ff_slot(v, letters, n, kind)];
    return slot ? v->pieces[(uint32_t)slot - 1].id : -1;
}

#endif
