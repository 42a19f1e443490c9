#include <stdatomic.h>

#include "flow.h"
#include "mxcsr.h"

#define WORTH_A_THREAD 1000000  /* multiply-adds that take as long as waking a thread */

typedef struct {
    const ff_flow *flow;
    const float *x;
    float *z;
    int64_t rows, blocks;
    int32_t keep;
    int normalize;
    _Atomic int64_t next;
    _Atomic int failed;
} job;

static void run_blocks(void *context, int thread)
{
    static ff_flow_body *const bodies[FF_ISAS] = {
        [FF_PORTABLE] = ff_flow_portable,
#if defined(__x86_64__)
        [FF_AVX2] = ff_flow_avx2, [FF_AVX512] = ff_flow_avx512, [FF_AMX] = ff_flow_avx512, [FF_AMX_EMULATED] = ff_flow_avx512,
#elif defined(__aarch64__)
        [FF_NEON] = ff_flow_neon, [FF_NEON_MM] = ff_flow_neon,
#endif
    };
    job *j = context;
    const ff_flow *f = j->flow;
    float *scratch = ff_scratch(sizeof(float) * (size_t)f->block * (size_t)f->stride);
    if (!scratch) {
        if (thread == 0)  /* workers without memory leave their blocks to others */
            atomic_store(&j->failed, 1);
        return;
    }
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->blocks;) {
        int64_t from = i * j->rows / j->blocks, to = (i + 1) * j->rows / j->blocks;
        bodies[f->isa](f, j->x + from * f->inputs, j->z + from * j->keep, (int)(to - from), j->keep, j->normalize, scratch);
    }
    ff_set_mxcsr(csr);
}

int ff_flow_run(const ff_flow *flow, const float *x, float *z, int64_t rows, int32_t keep, int normalize, int threads)
{
    if (rows <= 0)
        return 0;
    int64_t worth = rows * flow->cost / WORTH_A_THREAD;
    if (threads > worth)
        threads = worth < 1 ? 1 : (int)worth;
    int64_t blocks = (rows + flow->block - 1) / flow->block;
    if (blocks < 4 * (int64_t)threads)  /* give each thread the same number of blocks */
        blocks = (blocks + threads - 1) / threads * threads;
    job j = {flow, x, z, rows, blocks < rows ? blocks : rows, keep, normalize, 0, 0};
    ff_run(run_blocks, &j, threads);
    return j.failed ? -1 : 0;
}
