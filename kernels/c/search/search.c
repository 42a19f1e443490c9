#include <stdatomic.h>

#include "search.h"

#define SCAN_BYTES (1 << 18)  /* bytes of rows in a block, an eighth of a 2 MB L2 */

typedef struct {
    ff_scan_body *body;
    const ff_scanned *what;
    int64_t block;
    _Atomic int64_t next;
} job;

static void scan_blocks(void *context, int thread)
{
    job *j = context;
    const ff_scanned *w = j->what;
    (void)thread;
    for (int64_t from; (from = atomic_fetch_add(&j->next, j->block)) < w->count;) {
        int64_t rows = w->count - from < j->block ? w->count - from : j->block;
        for (int64_t q = 0; q < w->asked; q++)  /* all queries read a block while it is in L2 */
            j->body(w->rows + from * w->width, w->queries + q * w->width, w->out + 4 * (q * w->count + from), rows, w->width);
    }
}

static ff_scan_body *body_of(int isa, int scan)
{
#if defined(__x86_64__)
    if (scan == FF_HAMMINGS && isa != FF_PORTABLE && __builtin_cpu_supports("popcnt"))
        return ff_hammings_popcnt;
    if (scan == FF_DOTS && isa != FF_PORTABLE)
        return isa == FF_AVX2 ? ff_dots_avx2 : ff_dots_avx512;
    if (scan == FF_PRODUCTS && isa != FF_PORTABLE)
        return isa == FF_AVX2 ? ff_products_avx2 : ff_products_avx512;
#elif defined(__aarch64__)
    if (isa != FF_PORTABLE)
        return scan == FF_HAMMINGS ? ff_hammings_neon : scan == FF_PRODUCTS ? ff_products_neon : ff_has_neon_dot() ? ff_dots_dot : ff_dots_neon;
#endif
    (void)isa;
    return scan == FF_DOTS ? ff_dots_portable : scan == FF_PRODUCTS ? ff_products_portable : ff_hammings_portable;
}

void ff_scan(int isa, int scan, const ff_scanned *what, int threads)
{
    int64_t block = (SCAN_BYTES + what->width - 1) / what->width;
    int64_t worth = what->count * what->width * what->asked / SCAN_BYTES;
    if (threads > worth)
        threads = worth < 1 ? 1 : (int)worth;
    job j = {body_of(isa, scan), what, block, 0};
    ff_run(scan_blocks, &j, threads);
}
