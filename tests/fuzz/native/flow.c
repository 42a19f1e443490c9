/* Flows that record.py laid out: a row has the same bits in every batch, and all its columns are finite if the input is mild. */
#include "programs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    ff_flow f = drawn_flow(&s);
    if (take(&s, 1))
        f.cost = INT32_MAX;  /* worth every thread */
    const int64_t rows = 1 + take(&s, 70);
    const int32_t keep = 1 + take(&s, f.outputs - 1);
    const int normalize = take(&s, 1), mild = take(&s, 3), threads = 1 + take(&s, 2);
    float *x = room((size_t)(rows * f.inputs) * 4), *z = room((size_t)(rows * keep) * 4), *alone = room((size_t)keep * 4);
    for (int64_t i = 0; i < rows * f.inputs; i++)
        x[i] = mild ? (float)(take_byte(&s) - 128) / 32 : take_float(&s);
    CHECK(ff_flow_run(&f, x, z, rows, keep, normalize, threads) == 0, "no memory");
    for (int i = 0; i < 3; i++) {
        const int64_t r = take(&s, (int)rows - 1);
        CHECK(ff_flow_run(&f, x + r * f.inputs, alone, 1, keep, normalize, 1) == 0, "no memory");
        CHECK(same_floats(z + r * keep, alone, keep), "row %lld of %lld has other bits alone", (long long)r, (long long)rows);
        for (int32_t c = 0; mild && c < keep; c++)
            CHECK(isfinite(alone[c]), "row %lld, column %d is not finite", (long long)r, c);
    }
    free(x), free(z), free(alone);
    return 0;
}
