#ifndef FASTFLOW_NORMALIZE_H
#define FASTFLOW_NORMALIZE_H

#include "tokens.h"

enum { FF_OWN = 2048 };  /* bytes that a buffer has without asking for memory */

typedef struct {
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

/* Expand the kinds of characters; once, before all other calls. */
void ff_prepare_marks(void);
/* Kinds of characters: a grapheme goes on with it; it is a grapheme; a grapheme goes on after it; NFKC may change it;
   FF_UNMARKED drops it. */
enum { FF_JOINS = 1, FF_BREAKS = 2, FF_TAKES = 4, FF_CHANGES = 8, FF_ACCENT = 16 };
int ff_mark(uint32_t c);  /* a sum of kinds */
int ff_prepare_map(ff_rule *m);  /* makes m->odd, which the caller frees; 0: memory is short */
/* Normalize `given` by a step into `made`, which is empty. `ends`: 1: the text begins here, 2: it ends here. Returns
   FF_WHOLE, or FF_ASKED. */
int ff_normalize(const ff_rule *step, const ff_buffer *given, ff_buffer *made, int ends);

#endif
