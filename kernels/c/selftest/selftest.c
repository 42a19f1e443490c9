#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "mxcsr.h"
#include "selftest.h"

#define TRIED (1u << 31)
_Static_assert(FF_SELFTESTS < 31, "a bit for each self-test");

static _Atomic uint32_t answers[FF_ISAS];  /* bits of failed self-tests; TRIED: they have run */

const char *ff_selftest_name(int test)
{
    static const char *const names[FF_SELFTESTS] = {
        [FF_TRY_FLOW] = "the flow", [FF_TRY_TABLE] = "the mean of a table's rows", [FF_TRY_SCANS] = "scans",
        [FF_TRY_ROWS] = "rows of the encoder",
        [FF_TRY_PRODUCT + FF_FLOAT] = "float32 products", [FF_TRY_PRODUCT + FF_BF16] = "bfloat16 products",
        [FF_TRY_PRODUCT + FF_BF16_WIDE] = "widened bfloat16 products", [FF_TRY_PRODUCT + FF_INT8] = "int8 products",
        [FF_TRY_PRODUCT + FF_INT8_SIGNED] = "signed int8 products", [FF_TRY_PRODUCT + FF_INT8_TILES] = "int8 tiles",
        [FF_TRY_ATTENTION + FF_FLOAT] = "float32 attention", [FF_TRY_ATTENTION + FF_BF16] = "bfloat16 attention",
        [FF_TRY_ATTENTION + FF_INT8] = "int8 attention",
    };
    return names[test];
}

static int is_right(const ff_selftest *t, int test)
{
    switch (test) {
    case FF_TRY_FLOW: return ff_try_flow(t);
    case FF_TRY_TABLE: return ff_try_table(t);
    case FF_TRY_SCANS: return ff_try_scans(t);
    case FF_TRY_ROWS: return ff_try_rows(t);
    }
    return test < FF_TRY_ATTENTION ? ff_try_product(t, test - FF_TRY_PRODUCT) : ff_try_attention(t, test - FF_TRY_ATTENTION);
}

uint32_t ff_try(int isa, int broken, int keep)
{
    uint32_t wrong = 0;
    void *scratch = NULL;
    if (!ff_isa_present(isa) || posix_memalign(&scratch, 64, FF_TRY_BYTES))
        return 0;
    memset(scratch, 0, FF_TRY_BYTES);
    const ff_selftest t = {isa, broken, scratch};
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    ff_switch_tiles(isa, 1);
    for (int test = isa < FF_AMX ? 0 : FF_TRY_PRODUCT; test < FF_SELFTESTS; test++)
        if (!is_right(&t, test))
            wrong |= 1u << test;
    ff_switch_tiles(isa, 0);
    ff_set_mxcsr(csr);
    free(scratch);
    if (keep)
        atomic_store(&answers[isa], wrong | TRIED);
    return wrong;
}

uint32_t ff_wrong_so_far(int isa)
{
    return atomic_load(&answers[isa]) & ~TRIED;
}

uint32_t ff_wrong(int isa)
{
    uint32_t none = 0, answer = atomic_load(&answers[isa]);
    if (answer)
        return answer & ~TRIED;
    answer = ff_try(isa, -1, 0) | TRIED;
    return (atomic_compare_exchange_strong(&answers[isa], &none, answer) ? answer : none) & ~TRIED;
}
