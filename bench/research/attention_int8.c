/* Processor time of the heads of one text, attention in bfloat16 and in bytes by turns; see attention_int8.py, which compiles it. */
#include <time.h>

#include "encoder/encoder.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run(const ff_attention *attention, ff_head h, int heads, float *keys, float *scratch)
{
    const int64_t blocks = (h.tokens + FF_QUERIES - 1) / FF_QUERIES;
    for (int i = 0; i < heads; i++, h.q += 6 * h.size, h.out += 4 * h.size) {
        attention->pack_keys(&h, keys);
        for (int64_t b = 0; b < blocks; b++)
            attention->attend(&h, b * h.tokens / blocks, (b + 1) * h.tokens / blocks, keys, scratch);
    }
}

/* qkv (tokens, heads, 3, size) bfloat16, each row followed by 64 bytes -> out (tokens, heads, size) float32. `times`:
   `rounds` pairs of seconds a run, in bfloat16 and in bytes. */
void time_heads(const char *qkv, int64_t tokens, int heads, int size, float *keys, float *scratch, char *out, int rounds,
                int repeats, double *times)
{
    const ff_attention *kinds[] = {&ff_attention_avx512_bf16, &ff_attention_avx512_vnni};
    const ff_head h = {
        .q = qkv, .ldq = (ptrdiff_t)heads * 6 * size + 64, .ldout = (ptrdiff_t)heads * 4 * size,
        .out = out, .tokens = tokens, .window = -1, .size = size,
    };
    for (int i = 0; i < 2 * rounds; i++) {
        const double begin = now();
        for (int n = 0; n < repeats; n++)
            run(kinds[i % 2], h, heads, keys, scratch);
        times[i] = (now() - begin) / repeats;
    }
}
