#ifndef FASTFLOW_NORMALIZE_H
#define FASTFLOW_NORMALIZE_H

#include "tokens.h"

enum { FF_OWN = 2048 };  /* bytes that a buffer has without asking for memory */

typedef struct ff_buffer {
    uint8_t *at;        /* (length, of room) */
    int64_t length, room;
    int failed;         /* 1: memory was short, and bytes are lost */
    uint8_t own[FF_OWN];
} ff_buffer;

int ff_reserve_more(ff_buffer *b, int64_t more);

static inline int ff_reserve(ff_buffer *b, int64_t more)  /* 0: memory is short */
{
    return b->room - b->length >= more || ff_reserve_more(b, more);
}

static inline void ff_put(ff_buffer *b, const uint8_t *from, int64_t n)
{
    if (!ff_reserve(b, n))
        return;
    memcpy(b->at + b->length, from, (size_t)n);
    b->length += n;
}

void ff_open_buffer(ff_buffer *b);
void ff_close_buffer(ff_buffer *b);

/* Return `end` without the white space before it in letters from byte `start`. */
static inline int64_t ff_drop_spaces(const uint8_t *from, int64_t start, int64_t end)
{
    int length;
    while (end > start && ff_flags(ff_read_before(from, end, &length)) & FF_WHITE)
        end -= length;
    return end;
}

/* Expand the kinds of characters; once, before all other calls. */
void ff_prepare_marks(void);
/* Kinds of characters: a grapheme goes on with it; it is a grapheme; a grapheme goes on after it. */
enum { FF_JOINS = 1, FF_BREAKS = 2, FF_TAKES = 4 };
void ff_prepare_map(ff_rule *m);  /* fills m->odd */
/* Normalize letters (*n) by all steps: move *from and *n to the result, in a buffer of `two` or a part of the letters.
   Returns FF_WHOLE, FF_ASKED or FF_FULL. */
int ff_normalize(const ff_unigram *u, const uint8_t **from, int64_t *n, ff_buffer two[2]);

#endif
