/* WordPiece with BERT's normalizer, with the ids of Hugging Face's tokenizers. kernels/tokens/reference.py is the
   definition. */
#ifndef FASTFLOW_TOKENS_H
#define FASTFLOW_TOKENS_H

#include "vocabulary.h"

/* The normalizer's steps in order, except the last one, which is first. */
enum { FF_CLEAN = 1, FF_IDEOGRAPHS = 2, FF_STRIP = 4, FF_LOWER = 8, FF_LOWER_FIRST = 16 };
/* Flags of a character: dropped by FF_CLEAN; space; punctuation; a word by FF_IDEOGRAPHS; dropped by FF_STRIP;
   decomposed by it; a fence for marks; part of whole words. */
enum { FF_CONTROL = 1, FF_WHITE = 2, FF_PUNCTUATION = 4, FF_IDEOGRAPH = 8, FF_MARK = 16, FF_SPLITS = 32, FF_FENCE = 64,
       FF_WORD = 128 };
enum { FF_LONGEST = 256 };  /* most characters of a word that is cut; BERT's files say 100 */
enum { FF_EACH = 3 };       /* most characters, and ids, of one normalized character */

typedef struct {
    const uint8_t *letters;  /* (length) ASCII */
    int32_t length, id;
} ff_added;

typedef struct {
    const ff_vocabulary *words;
    const ff_vocabulary *whole;        /* uncut words, runs of FF_WORD; NULL: none. Needs FF_CLEAN */
    const ff_added *added;             /* (added_count) tokens found before normalization, longest first */
    const int32_t *before, *after;     /* (before_count), (after_count) ids at a text's ends */
    int32_t added_count, before_count, after_count;
    int32_t steps, longest, unknown;   /* longest: characters of a word; longer ones are the unknown token */
    uint8_t kinds[128], letters[128];  /* of ASCII characters: action, and letter within a word, else 0 */
} ff_wordpiece;

typedef struct {
    const void *letters;  /* (length) code points of `width` bytes: 1, 2 or 4, as Python stores them */
    int64_t length;
    int32_t width;
} ff_text;

/* words.c: fill `kinds` and `letters` from the other fields. */
void ff_prepare_ascii(ff_wordpiece *w);
/* Flags, class and lower case of a code point, and its decomposition; returns the decomposition's length. */
int ff_character(int32_t c, int32_t row[3], int32_t split[FF_EACH]);
enum { FF_WHOLE, FF_CUT, FF_HALF };  /* fits; was cut; has half a surrogate pair */
/* Write a text's ids (limit), including end ids if `special`, and their number to *count. Returns FF_WHOLE ... */
int ff_tokenize(const ff_wordpiece *w, const ff_text *text, int64_t limit, int special, int32_t *ids, int64_t *count);

/* tokens.c: the same for texts (many), with counts, states and starts (many). The caller frees the block; text i's
   ids begin at starts[i]. NULL: no memory. */
int32_t *ff_tokenize_all(const ff_wordpiece *w, const ff_text *texts, int64_t many, int64_t limit, int special,
                         int64_t *starts, int64_t *counts, int8_t *states, int threads);

#endif
