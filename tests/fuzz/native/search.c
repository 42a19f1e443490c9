/* Scans against plain loops: codes exactly, floats within the bound of search.h. */
#include "search/search.h"

#include "fuzz.h"

static void check(const ff_scanned *w, int scan)
{
    for (int64_t q = 0; q < w->asked; q++)
        for (int64_t r = 0; r < w->count; r++) {
            const char *row = w->rows + r * w->width, *query = w->queries + q * w->width, *at = w->out + 4 * (q * w->count + r);
            int32_t whole = 0, found;
            double sum = 0, rows = 0, queries = 0;
            memcpy(&found, at, 4);
            for (int64_t i = 0; i < w->width && scan != FF_PRODUCTS; i++)
                whole += scan == FF_DOTS ? (int8_t)row[i] * (int8_t)query[i] : __builtin_popcount((uint8_t)(row[i] ^ query[i]));
            if (scan != FF_PRODUCTS) {
                CHECK(found == whole, "row %lld: %d is not %d", (long long)r, found, whole);
                continue;
            }
            for (int64_t i = 0; i < w->width / 4; i++) {
                const double a = (double)((const float *)(const void *)row)[i], b = (double)((const float *)(const void *)query)[i];
                sum += a * b, rows += a * a, queries += b * b;
            }
            float got;
            memcpy(&got, at, 4);
            const double most = (double)(w->width / 4) * 0x1p-23 * sqrt(rows) * sqrt(queries) + 1e-30;
            CHECK(fabs((double)got - sum) <= most, "row %lld: %g is not %g", (long long)r, (double)got, sum);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    const int isa = take_isa(&s), scan = take(&s, 2), unit = scan == FF_PRODUCTS ? 4 : 1;
    ff_scanned w = {.count = 1 + take(&s, 40), .asked = scan == FF_PRODUCTS ? 1 + take(&s, 3) : 1, .width = unit * (1 + take(&s, 300))};
    char *rows = room((size_t)(w.count * w.width)), *queries = room((size_t)(w.asked * w.width)), *out = room((size_t)(4 * w.count * w.asked));
    for (int part = 0; part < 2; part++) {
        char *to = part ? queries : rows;
        for (int64_t i = 0; i < (part ? w.asked : w.count) * w.width; i += unit) {
            const float x = scan == FF_PRODUCTS ? (float)(take_byte(&s) - 128) / 8 : 0;
            if (scan == FF_PRODUCTS)
                memcpy(to + i, &x, 4);
            else
                to[i] = (char)take_byte(&s);
        }
    }
    w.rows = rows, w.queries = queries, w.out = out;
    ff_scan(isa, scan, &w, 1 + take(&s, 2));
    check(&w, scan);
    free(rows), free(queries), free(out);
    return 0;
}
