/* Tokenize texts on several threads, each text into its own part of one block of ids. */
#include <stdatomic.h>
#include <stdlib.h>

#include "tokens.h"

enum { TEXTS = 16 };       /* texts that a thread takes at a time */
enum { WORTH = 1 << 16, WORTH_UNIGRAM = 1 << 14 };  /* fewest characters per thread for which waking one pays */

typedef struct {
    const ff_tokenizer *w;
    const ff_text *texts;
    int64_t many, limit;
    int special;
    int32_t *ids;
    const int64_t *starts;
    int64_t *counts;
    int8_t *states;
    _Atomic int64_t next;
} job;

int64_t ff_room(const ff_tokenizer *w, const ff_text *text, int64_t limit, int special)
{
    int64_t ends = special ? w->before_count + w->after_count : 0;
    int64_t most = text->length > limit ? limit : ends + w->each * text->length;
    return most < limit ? most : limit;
}

int ff_tokenize(const ff_tokenizer *w, const ff_text *text, int64_t limit, int special, int32_t *ids, int64_t *count)
{
    int64_t before = special ? w->before_count : 0, after = special ? w->after_count : 0;
    int64_t room = ff_room(w, text, limit, special);
    ff_ids out = {.ids = ids + before, .room = room - before - after};
    int state = w->unigram ? ff_tokenize_unigram(w, text, &out) : ff_tokenize_words(w, text, &out);
    memcpy(ids, w->before, (size_t)before * sizeof *ids);
    memcpy(ids + before + out.count, w->after, (size_t)after * sizeof *ids);
    *count = before + out.count + after;
    return state == FF_CUT && room < limit ? FF_FULL : state;  /* more ids than `each` allows */
}

static void tokenize_texts(void *context, int thread)
{
    job *j = context;
    (void)thread;
    for (int64_t first; (first = atomic_fetch_add(&j->next, TEXTS)) < j->many;)
        for (int64_t i = first; i < first + TEXTS && i < j->many; i++)
            j->states[i] = (int8_t)ff_tokenize(j->w, &j->texts[i], j->limit, j->special, j->ids + j->starts[i],
                                               &j->counts[i]);
}

int32_t *ff_tokenize_all(const ff_tokenizer *w, const ff_text *texts, int64_t many, int64_t limit, int special,
                         int64_t *starts, int64_t *counts, int8_t *states, int threads)
{
    int64_t letters = 0, room = 0;
    for (int64_t i = 0; i < many; i++) {
        starts[i] = room;
        room += ff_room(w, &texts[i], limit, special);
        letters += texts[i].length;
    }
    int32_t *ids = malloc((size_t)(room ? room : 1) * sizeof *ids);  /* unwritten pages take no memory */
    if (!ids)
        return NULL;
    job j = {w, texts, many, limit, special, ids, starts, counts, states, 0};
    int64_t worth = 1 + letters / (w->unigram ? WORTH_UNIGRAM : WORTH);
    ff_run(tokenize_texts, &j, threads < worth ? threads : (int)worth);
    return ids;
}
