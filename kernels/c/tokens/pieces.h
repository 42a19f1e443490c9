#ifndef FASTFLOW_PIECES_H
#define FASTFLOW_PIECES_H

#include "vocabulary.h"

enum { FF_LONGEST_PIECE = 255 };  /* most bytes of a piece */

/* A trie: the unit of node n's child by byte b is units[base(n) ^ b] if the unit's low byte is b. Its bits 8 to 31 are
   the child's base, its upper half the child's id, or -1. */
typedef struct {
    uint64_t *units;   /* (many) */
    double *scores;    /* (count) of each id */
    int64_t many, count;  /* units; pieces */
    double least;      /* of all scores */
    uint32_t root;     /* base of the node that no byte has led to */
    int32_t empty;     /* id of the empty piece, or -1 */
    int32_t longest;   /* most bytes of a piece, and at least 4, for a character */
    int32_t lengths[FF_LONGEST_PIECE + 1];  /* different pieces of each number of characters */
} ff_pieces;

/* Read a JSON array of pairs [piece, score] at the start of json (length); set *end to its length. A piece's id is the
   number of its pair, the last of repeated pieces counts. FF_ODD: invalid JSON, or other numbers than this reads. */
int ff_read_pieces(ff_pieces *p, const uint8_t *json, int64_t length, int64_t *end);
void ff_free_pieces(ff_pieces *p);
int32_t ff_find_piece(const ff_pieces *p, const uint8_t *letters, int64_t n);  /* the id of a piece (n); -1: none */

#endif
