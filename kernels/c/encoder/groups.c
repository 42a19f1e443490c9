/* The texts of a call cut into groups, each of which one thread takes through all layers. */
#include "encoder.h"

#define GROUP_ROWS 192    /* tokens whose activations stay in a second-level cache */
#define WEIGHTS_ROWS 8     /* reading the weights once more takes a thread as long as so many tokens */

/* Where the group of texts that begins at `text` ends: at most `limit` tokens, or one longer text. */
static int64_t group_end(const ff_texts *in, int64_t text, int64_t limit)
{
    int64_t stop = text + 1;
    while (stop < in->texts && in->offsets[stop + 1] - in->offsets[text] <= limit)
        stop++;
    return stop;
}

int64_t ff_cut(const ff_texts *in, int64_t limit, ff_group *groups, int64_t *largest)
{
    int64_t count = 0;
    *largest = 0;
    for (int64_t text = 0, stop; text < in->texts; text = stop, count++) {
        stop = group_end(in, text, limit);
        const int64_t rows = in->offsets[stop] - in->offsets[text];
        if (rows > *largest)
            *largest = rows;
        if (groups)
            groups[count] = (ff_group){text, stop - text, in->offsets[text], rows, {0}};
    }
    return count;
}

/* How long the threads need, in tokens, when each takes the next group as soon as it is free. */
static int64_t makespan(const ff_texts *in, int64_t limit, int threads)
{
    int64_t busy[64] = {0}, last = 0;
    const int lanes = threads < 64 ? threads : 64;
    for (int64_t text = 0, stop; text < in->texts; text = stop) {
        stop = group_end(in, text, limit);
        int first = 0;
        for (int i = 1; i < lanes; i++)
            first = busy[i] < busy[first] ? i : first;
        busy[first] += in->offsets[stop] - in->offsets[text] + WEIGHTS_ROWS;
        last = busy[first] > last ? busy[first] : last;
    }
    return last;
}

int64_t ff_group_limit(const ff_texts *in, int64_t longest, int threads, int *uneven)
{
    const int64_t each = (in->offsets[in->texts] + threads - 1) / threads, parts = (each + GROUP_ROWS - 1) / GROUP_ROWS;
    int64_t limit = 0, best = INT64_MAX;
    for (int64_t p = parts; p < parts + 4; p++) {
        const int64_t tried = each / p + longest / 4, end = makespan(in, tried, threads);  /* groups end where a text does */
        if (end < best) {
            best = end;
            limit = tried;
        }
    }
    *uneven = best * threads * 7 > 8 * (in->offsets[in->texts] + threads * WEIGHTS_ROWS);  /* sharing costs a tenth */
    return limit;
}
