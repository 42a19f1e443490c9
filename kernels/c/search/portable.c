#include "search.h"
#include "vector_portable.h"

#define NAME ff_hammings_portable
#include "hammings.inc"

#undef NAME
#define NAME ff_products_portable
#include "floats.inc"

void ff_dots_portable(const void *codes, const void *query, void *out, int64_t rows, int64_t width)
{
    const int8_t *code = codes, *q = query;
    int32_t *to = out;
    for (int64_t r = 0; r < rows; r++, code += width) {
        int32_t sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += code[i] * q[i];
        to[r] = sum;
    }
}
