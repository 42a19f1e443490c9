/* Scans codes in blocks that threads take. A million codes are read at the speed of memory: a trial with VNNI, and one
   with VPOPCNTDQ, was no faster than what is here. */
#include <stdatomic.h>

#include "search.h"

#define BLOCK_BYTES (1 << 18)  /* of a block, and about the work that is worth waking a thread */

typedef struct {
    ff_scan_body body;
    const char *codes;
    const void *query;
    int32_t *out;
    int64_t rows, width, block;
    _Atomic int64_t next;
} job;

static void scan_blocks(void *context, int thread)
{
    job *j = context;
    (void)thread;
    for (int64_t from; (from = atomic_fetch_add(&j->next, j->block)) < j->rows;) {
        int64_t rows = j->rows - from < j->block ? j->rows - from : j->block;
        j->body(j->codes + from * j->width, j->query, j->out + from, rows, j->width);
    }
}

static ff_scan_body body_of(int isa, int scan)
{
#if defined(__x86_64__)
    if (scan == FF_HAMMINGS && isa != FF_PORTABLE && __builtin_cpu_supports("popcnt"))
        return ff_hammings_popcnt;
    if (scan == FF_DOTS && isa != FF_PORTABLE)
        return isa == FF_AVX2 ? ff_dots_avx2 : ff_dots_avx512;
#endif
    (void)isa;
    return scan == FF_DOTS ? ff_dots_portable : ff_hammings_portable;
}

void ff_scan(int isa, int scan, const void *codes, const void *query, int32_t *out, int64_t rows, int64_t width, int threads)
{
    int64_t block = (BLOCK_BYTES + width - 1) / width, worth = rows * width / BLOCK_BYTES;
    if (threads > worth)
        threads = worth < 1 ? 1 : (int)worth;
    job j = {body_of(isa, scan), codes, query, out, rows, width, block, 0};
    ff_run(scan_blocks, &j, threads);
}
