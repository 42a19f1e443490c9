/* Divide a call's texts into groups, for one thread or all, by a simple model of time. */
#include "encoder.h"

#define GROUP_ROWS 192     /* most tokens of one thread's group; their activations stay in L2 */
#define TILE_ROWS 384     /* GROUP_ROWS with AMX: weights are read less often */
#define TOGETHER_ROWS 512  /* tokens of a group that all threads share */
#define WEIGHTS_ROWS 8     /* reading all weights takes as long as computing this many tokens */
#define TILE_WEIGHTS_ROWS 64  /* WEIGHTS_ROWS with AMX */
#define MOST_TAILS 8       /* divisions tried that share 1, 2, ... texts at the end; the last shares all */
#define MOST_LIMITS 4      /* sizes of groups tried for each division */
#define MOST_LANES 64

/* End of the group that begins with `text`: at most `limit` tokens, or one longer text. */
static int64_t group_end(const ff_texts *in, int64_t text, int64_t stop, int64_t limit)
{
    int64_t end = text + 1;
    while (end < stop && in->offsets[end + 1] - in->offsets[text] <= limit)
        end++;
    return end;
}

static int64_t cut_groups(const ff_texts *in, int64_t text, int64_t stop, int64_t limit, ff_group *groups, int64_t *largest)
{
    int64_t count = 0;
    *largest = 0;
    for (int64_t end; text < stop; text = end, count++) {
        end = group_end(in, text, stop, limit);
        const int64_t rows = in->offsets[end] - in->offsets[text];
        if (rows > *largest)
            *largest = rows;
        if (groups)
            groups[count] = (ff_group){.text = text, .texts = end - text, .row = in->offsets[text], .rows = rows};
    }
    return count;
}

void ff_cut_groups(const ff_texts *in, ff_shares *s, ff_group *groups)
{
    s->count = cut_groups(in, 0, s->alone, s->limit, groups, &s->rows);
    s->shared = cut_groups(in, s->alone, in->texts, TOGETHER_ROWS, groups ? groups + s->count : NULL, &s->shared_rows);
}

/* Estimate the time for texts [0, stop), in tokens of one thread, if each free thread takes the next group. `reread`:
   time to read the weights once. */
static int64_t makespan(const ff_texts *in, int64_t stop, int64_t limit, int64_t reread, int threads)
{
    int64_t busy[MOST_LANES] = {0}, last = 0;
    const int lanes = threads < MOST_LANES ? threads : MOST_LANES;
    for (int64_t text = 0, end; text < stop; text = end) {
        end = group_end(in, text, stop, limit);
        int first = 0;
        for (int i = 1; i < lanes; i++)
            first = busy[i] < busy[first] ? i : first;
        busy[first] += in->offsets[end] - in->offsets[text] + reread;
        last = busy[first] > last ? busy[first] : last;
    }
    return last;
}

/* Estimate the time for the shared texts from `text` on. Waiting for other threads adds a fifth if threads share rows,
   three fifths if they share panels. */
static int64_t shared_span(const ff_texts *in, int64_t text, int64_t reread, int threads)
{
    int64_t span = 0;
    for (int64_t end; text < in->texts; text = end) {
        end = group_end(in, text, in->texts, TOGETHER_ROWS);
        const int64_t thread_rows = (in->offsets[end] - in->offsets[text]) / threads;
        span += thread_rows >= FF_THREAD_ROWS ? thread_rows * 6 / 5 + reread : thread_rows * 8 / 5 + reread / threads;
    }
    return span;
}

/* The fastest division if texts [0, alone) are not shared. */
static ff_shares shares_of(const ff_texts *in, int64_t alone, int64_t longest, int isa, int threads)
{
    const int64_t most = isa >= FF_AMX ? TILE_ROWS : GROUP_ROWS, reread = isa >= FF_AMX ? TILE_WEIGHTS_ROWS : WEIGHTS_ROWS;
    const int64_t thread_rows = (in->offsets[alone] + threads - 1) / threads, parts = (thread_rows + most - 1) / most;
    ff_shares s = {.alone = alone, .end = alone ? INT64_MAX : 0};
    for (int64_t p = parts; alone && p < parts + MOST_LIMITS; p++) {
        /* a quarter of the longest text more: groups are of whole texts */
        const int64_t limit = thread_rows / p + longest / 4;
        const int64_t end = makespan(in, alone, limit, reread, threads);
        if (end < s.end) {
            s.end = end;
            s.limit = limit;
        }
    }
    s.end += shared_span(in, alone, reread, threads);
    return s;
}

ff_shares ff_share_texts(const ff_texts *in, int64_t longest, int isa, int threads)
{
    int64_t tails = threads < MOST_TAILS ? threads : MOST_TAILS;
    tails = threads == 1 ? 0 : in->texts < tails ? in->texts : tails;
    ff_shares best = shares_of(in, in->texts, longest, isa, threads);
    for (int64_t tail = 1; tail <= tails; tail++) {
        const ff_shares s = shares_of(in, tail < tails ? in->texts - tail : 0, longest, isa, threads);
        if (s.end < best.end)
            best = s;
    }
    return best;
}
