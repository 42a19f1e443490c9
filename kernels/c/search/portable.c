/* Both scans in C. */
#include "search.h"

#define NAME ff_hammings_portable
#include "hammings.inc"

void ff_dots_portable(const void *codes, const void *query, int32_t *out, int64_t rows, int64_t width)
{
    const int8_t *code = codes, *q = query;
    for (int64_t r = 0; r < rows; r++, code += width) {
        int32_t sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += code[i] * q[i];
        out[r] = sum;
    }
}
