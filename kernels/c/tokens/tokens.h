/* WordPiece with BERT's normalizer: texts to token ids, those of Hugging Face's tokenizers. The definition is
   kernels/tokens/reference.py. */
#ifndef FASTFLOW_TOKENS_H
#define FASTFLOW_TOKENS_H

#include "vocabulary.h"

/* The steps of the normalizer, in their order but the last one, which is before the others. */
enum { FF_CLEAN = 1, FF_IDEOGRAPHS = 2, FF_STRIP = 4, FF_LOWER = 8, FF_LOWER_FIRST = 16 };
/* Flags of a character: dropped by FF_CLEAN; a space; punctuation; set apart by FF_IDEOGRAPHS; dropped by FF_STRIP; taken
   apart by it; dropped by it after no mark was moved across it; a letter, digit, mark or the like of a whole word. */
enum { FF_CONTROL = 1, FF_WHITE = 2, FF_PUNCTUATION = 4, FF_IDEOGRAPH = 8, FF_MARK = 16, FF_SPLITS = 32, FF_FENCE = 64,
       FF_WORD = 128 };
enum { FF_LONGEST = 256 };  /* the most characters of a word that is cut into pieces; BERT's files say 100 */
enum { FF_EACH = 3 };       /* the most characters that the normalizer makes of one, so the most ids */

typedef struct {
    const uint8_t *letters;  /* ASCII */
    int32_t length, id;
} ff_added;

typedef struct {
    const ff_vocabulary *words;
    const ff_vocabulary *whole;        /* normalized words that are not cut, each a run of FF_WORD
                                          of at most `longest` characters; NULL: none. Needs FF_CLEAN */
    const ff_added *added;             /* tokens that are found in the text itself, longest first */
    const int32_t *before, *after;     /* ids at the ends of a text */
    int32_t added_count, before_count, after_count;
    int32_t steps, longest, unknown;   /* longest: characters of a word, beyond which it is the unknown token */
    uint8_t kinds[128], letters[128];  /* of ASCII characters: what each does, and what it is inside a word; else 0 */
} ff_wordpiece;

typedef struct {
    const void *letters;  /* code points of `width` bytes each: 1, 2 or 4, as Python has them */
    int64_t length;
    int32_t width;
} ff_text;

/* words.c: what each ASCII character does, filled in from the other fields. */
void ff_prepare_ascii(ff_wordpiece *w);
/* The flags, canonical class and lower case of a code point, and what it becomes without accents; returns how many. */
int ff_character(int32_t c, int32_t row[3], int32_t split[FF_EACH]);
enum { FF_WHOLE, FF_CUT, FF_HALF };  /* a text that fits; one with more ids than fit; one with half a surrogate pair */
/* Write the ids of a text, at most `limit` and those at the ends counted if `special`; their number to *count. */
int ff_tokenize(const ff_wordpiece *w, const ff_text *text, int64_t limit, int special, int32_t *ids, int64_t *count);

/* tokens.c: the same for `many` texts. counts and states have one entry a text. The ids come in one block of memory that
   the caller frees: those of text i at starts[i]. NULL: no memory. */
int32_t *ff_tokenize_all(const ff_wordpiece *w, const ff_text *texts, int64_t many, int64_t limit, int special,
                         int64_t *starts, int64_t *counts, int8_t *states, int threads);

#endif
