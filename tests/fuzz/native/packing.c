/* Packing against its definition, number by number: support/definitions.py: pack in C. Any bits are weights. */
#include "gemm/packing.h"

#include "fuzz.h"
#include "mxcsr.h"
#include "scalar.h"

enum { MOST = 40 };

static float stored_number(const char *from, int stored, int64_t i)
{
    uint16_t h;
    float x;
    if (stored == FF_STORED_FLOAT)
        return memcpy(&x, from + 4 * i, 4), x;
    memcpy(&h, from + 2 * i, 2);
    if (stored == FF_STORED_BF16)
        return ff_of_bits((uint32_t)h << 16);
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
                                                                               : ldexpf((float)fraction, -24);
    return h >> 15 ? -size : size;
}

/* Row `r` of the matrix as float32 (groups * padded), zeros between; whether its weights are usable. */
static int wanted_row(const ff_matrix *m, int64_t r, float *row)
{
    const int64_t size = m->columns / m->groups, part = m->rows[r] / m->part_rows;
    int usable = 1;
    for (int64_t c = 0; c < m->columns; c++) {
        const float x = stored_number(m->parts[part], m->stored, m->rows[r] % m->part_rows * m->columns + c);
        usable &= fabsf(x) <= 1e6f;
        row[c / size * m->padded + c % size] = (part ? x : x * m->factor) * (m->by ? m->by[c] : 1.0f);
    }
    return usable;
}

static void check_row(const ff_matrix *m, int64_t r, int panel, const float *row)
{
    const int64_t inner = m->groups * m->padded, steps = inner / m->lanes + m->spare;
    const char *from = m->panels + 4 * (r / panel * steps * panel + r % panel);
    float largest = 0;
    int32_t sum = 0;
    for (int64_t k = 0; k < inner; k++)
        largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
    const float scale = largest / 127.0f, inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
    for (int64_t k = 0; k < steps * m->lanes; k++) {
        const char *at = from + k / m->lanes * 4 * panel + k % m->lanes * (4 / m->lanes);
        const float x = k < inner ? row[k] : 0;
        if (m->lanes == 1) {
            CHECK(!memcmp(at, &x, 4), "row %lld, column %lld: another float32", (long long)r, (long long)k);
        } else if (m->lanes == 2) {
            const uint16_t half = ff_bfloat16(ff_bits(x));
            CHECK(!memcmp(at, &half, 2), "row %lld, column %lld: another bfloat16", (long long)r, (long long)k);
        } else {
            const int whole = (int)rintf(x * inverse);
            CHECK(*(const int8_t *)at == whole, "row %lld, column %lld: %d is not %d", (long long)r, (long long)k, *(const int8_t *)at, whole);
            sum += whole;
        }
    }
    if (m->lanes == 4)
        CHECK(m->scale[r] == scale && m->shift[r] == -m->zero * sum, "row %lld: another scale or shift", (long long)r);
}

static void check_conversion(source *s, const char *from, int stored, int64_t count)
{
    const int half = take(s, 1);
    char *to = room((size_t)count * (half ? 2 : 4));
    int32_t largest = 0;
    const int32_t found = ff_convert(from, stored, count, to, half, 1 + take(s, 1));
    for (int64_t i = 0; i < count; i++) {
        const float x = stored_number(from, stored, i);
        const int32_t bits = (int32_t)(ff_bits(x) & 0x7fffffff);
        largest = bits > largest ? bits : largest;
        if (!half)
            CHECK(x != x || !memcmp(to + 4 * i, &x, 4), "number %lld is converted to another", (long long)i);
        else if (fabsf(x) <= 65504)
            CHECK(fabsf(stored_number(to, FF_STORED_HALF, i) - x) <= fmaxf(fabsf(x) * 0x1p-11f, 0x1p-25f), "number %lld is rounded", (long long)i);
    }
    CHECK(largest >= FF_NOT_FINITE ? found >= FF_NOT_FINITE : found == largest, "the largest is %08x, not %08x", found, largest);
    free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    static const int panels[] = {8, 16, 32, 1, 5};
    const int panel = panels[take(&s, 4)], parts = 1 + take(&s, FF_PARTS - 1);
    ff_matrix m = {.stored = take(&s, FF_STORED_KINDS - 1), .part_rows = 1 + take(&s, 20), .lanes = 1 << take(&s, 2),
                   .groups = 1 + take(&s, 3), .spare = take(&s, 2), .factor = take(&s, 1) ? 1.0f : 0.125f};
    m.columns = m.groups * (1 + take(&s, MOST));
    m.padded = (m.columns / m.groups + 3) / 4 * 4 + 4 * take(&s, 2);
    m.height = panel * (1 + take(&s, 2));
    m.zero = m.lanes == 4 && take(&s, 1) ? 128 : 0;
    const int64_t inner = m.groups * m.padded, numbers = m.part_rows * m.columns;
    const int plain = take(&s, 1);  /* else any bits: NaN, infinities and magnitudes that are refused */
    char *stored[FF_PARTS] = {NULL};
    for (int p = 0; p < parts; p++) {
        m.parts[p] = stored[p] = room((size_t)(numbers * ff_stored_size(m.stored)));
        for (int64_t i = 0; i < numbers; i++) {
            const uint32_t any = (uint32_t)take(&s, 65535) << 16 | (uint32_t)take(&s, 65535);
            const uint32_t bits = plain ? ff_bits((float)((int)(any >> 16) - 32768) / 8192.0f) : any;
            const uint16_t top = m.stored == FF_STORED_HALF && plain ? (uint16_t)(any & 0xbfff) : (uint16_t)(bits >> 16);
            memcpy(stored[p] + i * ff_stored_size(m.stored), m.stored == FF_STORED_FLOAT ? (const void *)&bits : &top,
                   (size_t)ff_stored_size(m.stored));
        }
    }
    int32_t *rows = room((size_t)m.height * 4), bad = 0;
    for (int64_t r = 0; r < m.height; r++)
        rows[r] = take(&s, parts * (int)m.part_rows) - 1;
    float *by = room((size_t)m.columns * 4), *row = room((size_t)inner * 4);
    for (int64_t c = 0; c < m.columns; c++)
        by[c] = ldexpf(1, take(&s, 8) - 4);
    m.by = m.lanes == 4 && m.groups == 1 && take(&s, 1) ? by : NULL;
    m.rows = rows;
    m.panels = room((size_t)(4 * m.height * (inner / m.lanes + m.spare)));
    m.scale = room((size_t)m.height * 4), m.shift = room((size_t)m.height * 4);
    CHECK(ff_pack(&m, 1, panel, &bad, 1 + take(&s, 2)) == 0, "no memory");
    int32_t wanted = 0;
    const ff_mxcsr csr = ff_set_mxcsr(FF_DEFAULT);
    for (int64_t r = 0; r < m.height; r++) {
        memset(row, 0, (size_t)inner * 4);
        if (rows[r] >= 0 && !wanted_row(&m, r, row))
            wanted |= 1 << rows[r] / m.part_rows;
        else
            check_row(&m, r, panel, row);
    }
    ff_set_mxcsr(csr);
    CHECK(bad == wanted, "parts %x are refused, not %x", (unsigned)bad, (unsigned)wanted);
    check_conversion(&s, stored[0], m.stored, numbers);
    for (int p = 0; p < parts; p++)
        free(stored[p]);
    free(rows), free(by), free(row), free(m.panels), free(m.scale), free(m.shift);
    return 0;
}
