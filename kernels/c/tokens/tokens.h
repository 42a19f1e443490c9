/* WordPiece with BERT's normalizer. kernels/tokens/reference.py is the definition. */
#ifndef FASTFLOW_TOKENS_H
#define FASTFLOW_TOKENS_H

#include "vocabulary.h"

/* Flags of the normalizer's steps, which run in this order after FF_LOWER_FIRST. */
enum { FF_CLEAN = 1, FF_IDEOGRAPHS = 2, FF_STRIP = 4, FF_LOWER = 8, FF_LOWER_FIRST = 16 };
/* Flags of a character, in order: dropped by FF_CLEAN; space; punctuation; a word of its own by FF_IDEOGRAPHS; dropped
   by FF_STRIP; decomposed by FF_STRIP; marks do not move before it; can be in a word of `whole`. */
enum { FF_CONTROL = 1, FF_WHITE = 2, FF_PUNCTUATION = 4, FF_IDEOGRAPH = 8, FF_MARK = 16, FF_SPLITS = 32, FF_FENCE = 64,
       FF_WORD = 128 };
enum { FF_LONGEST = 256 };  /* most characters of a word that is cut into pieces */
enum { FF_EACH = 3 };       /* most characters, and ids, from one character of a text */

typedef struct {
    const uint8_t *letters;  /* (length) ASCII */
    int32_t length, id;
} ff_added;

typedef struct {
    const ff_vocabulary *words;
    const ff_vocabulary *whole;        /* words that are not cut, made of FF_WORD characters; or NULL */
    const ff_added *added;             /* (added_count) tokens found before normalization, longest first */
    const int32_t *before, *after;     /* (before_count), (after_count) start and end ids of a text */
    int32_t added_count, before_count, after_count;
    int32_t steps, longest, unknown;   /* words with more than `longest` characters become `unknown` */
    uint8_t kinds[128], letters[128];  /* of each ASCII character: how it is read; the letter added to a word, or 0 */
} ff_wordpiece;

typedef struct {
    const void *letters;  /* (length) code points of `width` bytes (1, 2 or 4), as Python stores them */
    int64_t length;
    int32_t width;
} ff_text;

/* Fill `kinds` and `letters` from the other fields. */
void ff_prepare_ascii(ff_wordpiece *w);
/* Set row (flags, canonical class, lower case) and split, c's decomposition without accents. Returns its length. */
int ff_character(int32_t c, int32_t row[3], int32_t split[FF_EACH]);
enum { FF_WHOLE, FF_CUT, FF_HALF };  /* state of a text: it fits, was cut, or has half a surrogate pair */
/* Write at most `limit` ids of a text and set *count. `special`: with start and end ids. Returns the text's state. */
int ff_tokenize(const ff_wordpiece *w, const ff_text *text, int64_t limit, int special, int32_t *ids, int64_t *count);

/* Tokenize texts (many): set starts, counts, states (many). Returns the ids, which the caller frees; text i's begin at
   starts[i]. NULL: memory is short. */
int32_t *ff_tokenize_all(const ff_wordpiece *w, const ff_text *texts, int64_t many, int64_t limit, int special,
                         int64_t *starts, int64_t *counts, int8_t *states, int threads);

#endif
