/* WordPiece with BERT's normalizer, and Unigram with SentencePiece's. tests/support/definitions.py defines them. */
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
enum { FF_EACH = 3 };       /* WordPiece's most characters, and ids, from one character of a text */

typedef struct {
    const uint8_t *letters;  /* (length) ASCII */
    int32_t length, id, takes;  /* takes: 1: it takes the white space before it */
} ff_added;

/* Steps of Unigram's normalizer: replace by a map of characters; leave ASCII; lower ASCII; replace `old`; replace `old`
   and all spaces after it; drop white space at the end. */
enum { FF_MAPPED, FF_KEPT, FF_LOWERED, FF_REPLACED, FF_JOINED, FF_STRIPPED };
enum { FF_ODDS = 0x10000 };  /* characters that a map has a table for */
typedef struct {
    int32_t kind, old_length, new_length;
    const uint8_t *old, *new;  /* (old_length), (new_length); FF_MAPPED's: units as bytes, and texts that end with 0 */
    uint8_t *odd;              /* of FF_MAPPED, (FF_ODDS): 1 for a character that may change or join others */
} ff_rule;

struct ff_buffer;
typedef struct {
    const ff_rule *steps;       /* (step_count) */
    const ff_added *later;      /* (later_count) tokens found after normalization, longest first */
    int32_t step_count, later_count;
    int32_t words;              /* 1: white space ends a word, and is dropped */
    int32_t chunks;             /* 1: a part may be cut before a space between ASCII letters or digits */
    /* Normalize letters (n) by a library. Returns 0 if it fails. NULL: no library may be called. */
    int (*ask)(void *context, const uint8_t *letters, int64_t n, struct ff_buffer *made);
    void *context;
} ff_unigram;

typedef struct {
    const ff_unigram *unigram;         /* NULL: WordPiece, by `whole` and the fields from `steps` on */
    const ff_vocabulary *words;
    const ff_vocabulary *whole;        /* words that are not cut, made of FF_WORD characters; or NULL */
    const ff_added *added;             /* (added_count) tokens found before normalization, longest first */
    const int32_t *before, *after;     /* (before_count), (after_count) start and end ids of a text */
    int32_t added_count, before_count, after_count;
    int32_t each;                      /* most ids from one character of a text */
    int32_t unknown;
    int32_t steps, longest;            /* words with more than `longest` characters become `unknown` */
    uint8_t kinds[128], letters[128];  /* of each ASCII character: how it is read; the letter added to a word, or 0 */
} ff_tokenizer;

typedef struct {
    const void *letters;  /* (length) code points of `width` bytes (1, 2 or 4), as Python stores them */
    int64_t length;
    int32_t width;
} ff_text;

enum { FF_ADDED = 8, FF_LATER = 16 };  /* of ff_tokenizer.kinds: an added token, or one of `later`, may begin here */

/* Set `found` to the first of the added tokens (count) that begins characters (n) at `at`, or to NULL. */
#define FF_FIND_ADDED(found, added, count, at, n) do { \
    (found) = NULL; \
    for (const ff_added *one_ = (added); one_ < (added) + (count) && !(found); one_++) { \
        int32_t same_ = 0; \
        while (same_ < one_->length && same_ < (n) && (at)[same_] == one_->letters[same_]) \
            same_++; \
        (found) = same_ == one_->length ? one_ : NULL; \
    } \
} while (0)

static inline int ff_is_half(uint32_t c)  /* of a surrogate pair */
{
    return c >> 11 == 0x1b;
}

typedef struct {
    int32_t *ids;
    int64_t count, room;  /* ids written; the most that fit */
    int cut, half;        /* 1: ids were dropped; half a surrogate pair was found */
} ff_ids;

static inline void ff_put_ids(ff_ids *out, const int32_t *ids, int64_t count)
{
    int64_t left = out->room - out->count, fit = left < count ? left : count;
    memcpy(out->ids + out->count, ids, (size_t)fit * sizeof *ids);
    out->count += fit;
    out->cut |= fit < count;
}

/* Fill `kinds` and `letters` from the other fields. */
void ff_prepare_letters(ff_tokenizer *w);
/* Set row (flags, canonical class, lower case) and split, c's decomposition without accents. Returns its length. */
int ff_character(int32_t c, int32_t row[3], int32_t split[FF_EACH]);
/* State of a text: it fits; was cut; has half a surrogate pair; must be normalized by a library; memory was short. */
enum { FF_WHOLE, FF_CUT, FF_HALF, FF_ASKED, FF_FULL };
int ff_flags(uint32_t c);  /* of a character */
/* Write a text's ids without the ids at its ends. Returns the text's state. */
int ff_tokenize_words(const ff_tokenizer *w, const ff_text *text, ff_ids *out);
int ff_tokenize_unigram(const ff_tokenizer *t, const ff_text *text, ff_ids *out);
/* Return the most ids of a text, with start and end ids if `special`. */
int64_t ff_room(const ff_tokenizer *w, const ff_text *text, int64_t limit, int special);
/* Write at most `limit` ids of a text and set *count; ids (ff_room). Returns the text's state. */
int ff_tokenize(const ff_tokenizer *w, const ff_text *text, int64_t limit, int special, int32_t *ids, int64_t *count);

/* Tokenize texts (many): set starts, counts, states (many). Returns the ids, which the caller frees; text i's begin at
   starts[i]. NULL: memory is short. */
int32_t *ff_tokenize_all(const ff_tokenizer *w, const ff_text *texts, int64_t many, int64_t limit, int special,
                         int64_t *starts, int64_t *counts, int8_t *states, int threads);

#endif
