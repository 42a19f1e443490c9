#ifndef FASTFLOW_VOCABULARY_H
#define FASTFLOW_VOCABULARY_H

#include <string.h>

#include "cpu.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the hash masks the last bytes of a number");

enum { FF_FIRST_PIECE, FF_LATER_PIECE };  /* of WordPiece: begins a word; continues it */
enum { FF_LONGEST_PIECE = 255 };  /* most bytes of a piece */
enum { FF_SLACK = 8 };  /* bytes after a looked-up piece of WordPiece that must be readable */

typedef struct {
    uint32_t start, length;  /* of the piece in `letters`, without WordPiece's ## */
    int32_t id, kind;
} ff_piece;

typedef struct {
    int64_t count;  /* WordPiece: different pieces; Unigram: pairs, which ids number */
    int32_t largest;    /* id */
    int32_t longest[2]; /* most bytes of each kind of piece; of Unigram's, at least 4, for a character */
    int32_t lengths[FF_LONGEST_PIECE + 1];  /* different pieces of each number of characters, with ## */
    int scored;         /* 1: Unigram */
    ff_piece *pieces;   /* of WordPiece, with letters and slots */
    uint8_t *letters;
    uint64_t *slots;    /* (mask + 1) upper half of a hash, and the piece's number + 1; 0: free */
    uint64_t mask;
    double *scores;     /* of Unigram: (count) of each id, with a trie */
    double least;       /* of all scores */
    uint64_t *units;    /* (many) of the trie */
    int64_t many;
    uint32_t root;      /* base of the node that no byte has led to */
    int32_t empty;      /* id of the empty piece, or -1 */
} ff_vocabulary;

enum { FF_READ, FF_ODD, FF_NO_MEMORY };
/* Read a JSON object of pieces and ids, for WordPiece, or a JSON array of pairs [piece, score], for Unigram, at the
   start of json (length); set *end to its length. The last of repeated pieces counts. FF_ODD: invalid JSON, colliding
   pieces, or other numbers than this reads. */
int ff_read_vocabulary(ff_vocabulary *v, const uint8_t *json, int64_t length, int64_t *end);
void ff_free_vocabulary(ff_vocabulary *v);
int ff_put_utf8(uint8_t *to, uint32_t c);  /* returns the bytes written, 1 to 4 */

/* Make Unigram's trie of v->pieces (count). The unit of node n's child by byte b is units[base(n) ^ b] if the unit's
   low byte is b. Its bits 8 to 31 are the child's base, its upper half the child's id, or -1. */
int ff_build_trie(ff_vocabulary *v, int64_t count);
/* Return Unigram's id of a piece (n), or -1. */
int32_t ff_find_piece(const ff_vocabulary *v, const uint8_t *letters, int64_t n);

static inline int ff_utf8_length(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static inline uint32_t ff_read_utf8(const uint8_t *from, int *length)
{
    *length = ff_utf8_length(*from);
    uint32_t c = *length == 1 ? *from : *from & (0x7fu >> *length);
    for (int i = 1; i < *length; i++)
        c = c << 6 | (from[i] & 0x3f);
    return c;
}

/* Return the character before byte `end`; set its bytes. */
static inline uint32_t ff_read_before(const uint8_t *from, int64_t end, int *length)
{
    int64_t at = end - 1;
    while (from[at] >> 6 == 2)
        at--;
    return ff_read_utf8(from + at, length);
}

/* Count a piece (n) in v->lengths. */
static inline void ff_count_length(ff_vocabulary *v, const uint8_t *letters, int64_t n)
{
    int characters = 0;
    for (int64_t i = 0; i < n; i++)
        characters += letters[i] >> 6 != 2;
    v->lengths[characters]++;
}

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

/* WordPiece's id of a piece (n; FF_SLACK bytes more are readable), n >= 1; -1: none. */
static inline int32_t ff_find(const ff_vocabulary *v, const uint8_t *letters, int64_t n, int kind)
{
    uint64_t slot = v->slots[ff_slot(v, letters, n, kind)];
    return slot ? v->pieces[(uint32_t)slot - 1].id : -1;
}

#endif
