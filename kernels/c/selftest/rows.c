#include <math.h>
#include <string.h>

#include "encoder/encoder.h"
#include "scalar.h"
#include "search/search.h"
#include "table/table.h"
#include "parts.h"

enum { WIDE = 20, COUNT = 4, ROOM = 64 };

/* Eight times ff_try_number, as an integer and as an IEEE half. */
static int whole(int r, int i) { return (int)(8 * ff_try_number(r, i)); }

static uint16_t half_of(int r, int i)
{
    static const uint16_t halves[] = {0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200};
    return halves[whole(r, i) + 3];
}

int ff_try_table(const ff_selftest *t)
{
    static const int32_t ids[] = {1, 3, 0, 2, 1};
    static const int64_t offsets[] = {0, 5};
    static const float scales[COUNT] = {0.5f, 1, 2, 0.25f}, weights[COUNT] = {1, 0.5f, 0.25f, 2};
    float floats[COUNT * WIDE], out[WIDE];
    uint16_t halves[COUNT * WIDE];
    int8_t bytes[COUNT * WIDE];
    double want[WIDE], total = 0;
    for (int i = 0; i < COUNT * WIDE; i++) {
        floats[i] = (float)whole(i / WIDE, i % WIDE);
        halves[i] = half_of(i / WIDE, i % WIDE);
        bytes[i] = (int8_t)whole(i / WIDE, i % WIDE);
    }
    memset(want, 0, sizeof want);
    for (int i = 0; i < 5; i++) {
        total += weights[ids[i]];
        for (int c = 0; c < WIDE; c++)
            want[c] += (double)weights[ids[i]] * scales[ids[i]] * floats[ids[i] * WIDE + c];
    }
    for (int c = 0; c < WIDE; c++)
        want[c] /= total;
    const void *const rows[FF_ROWS_KINDS] = {floats, halves, bytes};
    for (int stored = 0; stored < FF_ROWS_KINDS; stored++) {
        const ff_table table = {rows[stored], scales, weights, NULL, COUNT, WIDE, COUNT, 2, stored, t->isa};
        ff_table_run(&table, ids, offsets, 1, out, 1);
        if (!ff_agree(t, FF_TRY_TABLE, out, want, WIDE, 1e-6))
            return 0;
    }
    return 1;
}

/* Test scans of 76-byte rows: whole vectors and a remainder. */
int ff_try_scans(const ff_selftest *t)
{
    enum { BYTES = 76, FLOATS = BYTES / 4 };
    int8_t codes[COUNT * BYTES], query[BYTES];
    float floats[COUNT * FLOATS], asked[FLOATS], found[COUNT];
    double dots[COUNT] = {0}, hammings[COUNT] = {0}, products[COUNT] = {0};
    for (int i = 0; i < BYTES; i++)
        query[i] = (int8_t)(29 * whole(9, i));
    for (int i = 0; i < FLOATS; i++)
        asked[i] = (float)whole(9, i);
    for (int r = 0; r < COUNT; r++) {
        for (int i = 0; i < BYTES; i++) {
            codes[r * BYTES + i] = (int8_t)(31 * whole(r, i));
            dots[r] += codes[r * BYTES + i] * query[i];
            hammings[r] += __builtin_popcount((uint8_t)(codes[r * BYTES + i] ^ query[i]));
        }
        for (int i = 0; i < FLOATS; i++) {
            floats[r * FLOATS + i] = (float)whole(r, i);
            products[r] += floats[r * FLOATS + i] * asked[i];
        }
    }
    const double *const wants[] = {[FF_DOTS] = dots, [FF_HAMMINGS] = hammings, [FF_PRODUCTS] = products};
    for (int scan = FF_DOTS; scan <= FF_PRODUCTS; scan++) {
        int32_t out[COUNT];
        const int plain = scan == FF_PRODUCTS;
        const ff_scanned what = {plain ? (const char *)floats : (const char *)codes,
                                 plain ? (const char *)asked : (const char *)query, (char *)out, COUNT, 1, BYTES};
        ff_scan(t->isa, scan, &what, 1);
        for (int r = 0; r < COUNT; r++)
            found[r] = plain ? ff_of_bits((uint32_t)out[r]) : (float)out[r];
        if (!ff_agree(t, FF_TRY_SCANS, found, wants[scan], COUNT, 0))
            return 0;
    }
    return 1;
}

static int try_norm(const ff_selftest *t, const ff_body *body)
{
    float x[ROOM] = {0}, y[ROOM], scale[ROOM] = {0}, bias[ROOM] = {0};
    double want[WIDE], mean = 0, variance = 0.125;
    for (int i = 0; i < WIDE; i++) {
        x[i] = 3 + (float)ff_try_number(1, i);
        scale[i] = 1 + (float)(i % 3);
        bias[i] = (float)ff_try_number(2, i);
        mean += x[i] / (double)WIDE;
    }
    for (int i = 0; i < WIDE; i++)
        variance += (x[i] - mean) * (x[i] - mean) / WIDE;
    for (int i = 0; i < WIDE; i++)
        want[i] = (x[i] - mean) / sqrt(variance) * scale[i] + bias[i];
    body->norm(x, y, WIDE, scale, bias, 0.125f);
    return ff_agree(t, FF_TRY_ROWS, y, want, WIDE, 1e-5);
}

static int try_embed(const ff_selftest *t, const ff_body *body)
{
    uint16_t words[COUNT * WIDE];
    float positions[COUNT * WIDE], x[ROOM];
    double want[WIDE];
    for (int i = 0; i < COUNT * WIDE; i++) {
        words[i] = half_of(i / WIDE, i % WIDE);
        positions[i] = (float)ff_try_number(i / WIDE + 1, i % WIDE);
    }
    const ff_encoder encoder = {.words = words, .positions = positions, .half = 1};
    for (int i = 0; i < WIDE; i++)
        want[i] = whole(3, i) + ff_try_number(2, i);
    body->embed(&encoder, 3, 1, WIDE, x);
    return ff_agree(t, FF_TRY_ROWS, x, want, WIDE, 0);
}

/* Test pooling of 20 tokens, more than one run. */
static int try_pool(const ff_selftest *t, const ff_body *body)
{
    enum { TOKENS = 20 };
    float *x = (float *)(void *)t->scratch, weights[TOKENS], out[ROOM];
    double means[WIDE], largest[WIDE];
    for (int c = 0; c < WIDE; c++) {
        means[c] = 0;
        largest[c] = -INFINITY;
        for (int i = 0; i < TOKENS; i++) {
            weights[i] = 1 + (float)(i % 2);
            x[i * ROOM + c] = (float)ff_try_number(i, c);
            means[c] += weights[i] * ff_try_number(i, c) / 30 / 2;
            largest[c] = fmax(largest[c], weights[i] * ff_try_number(i, c));
        }
    }
    body->pool(x, ROOM, weights, TOKENS, WIDE, 30, 0.5f, 1, out);
    if (!ff_agree(t, FF_TRY_ROWS, out, means, WIDE, 1e-6))
        return 0;
    body->largest(x, ROOM, weights, TOKENS, WIDE, out);
    return ff_agree(t, FF_TRY_ROWS, out, largest, WIDE, 0);
}

static int try_convert(const ff_selftest *t, const ff_body *body)
{
    float x[ROOM] = {0}, found[ROOM / 2];
    double halves[ROOM / 2], bytes[ROOM / 2];
    char to[4 * ROOM];
    for (int i = 0; i < ROOM / 2; i++) {
        x[i] = (float)(i * 7 % 31 - 15) / 4;
        halves[i] = x[i];
        bytes[i] = rint(x[i] * 127 / 3.75);
    }
    body->convert(x, NULL, NULL, ROOM / 2, FF_BF16, to);
    for (int i = 0; i < ROOM / 2; i++) {
        uint16_t half;
        memcpy(&half, to + 2 * i, sizeof half);
        found[i] = ff_of_bits((uint32_t)half << 16);
    }
    if (!ff_agree(t, FF_TRY_ROWS, found, halves, ROOM / 2, 0))
        return 0;
    for (int format = FF_INT8; format <= FF_INT8_SIGNED; format++) {
        body->convert(x, NULL, NULL, ROOM / 2, format, to);
        for (int i = 0; i < ROOM / 2; i++)
            found[i] = (float)(format == FF_INT8 ? (uint8_t)to[i] - FF_ZERO_POINT : (int8_t)to[i]);
        if (!ff_agree(t, FF_TRY_ROWS, found, bytes, ROOM / 2, 0))
            return 0;
    }
    return 1;
}

static int try_rotate(const ff_selftest *t, const ff_body *body)
{
    enum { HEAD = 32 };
    float x[3 * HEAD], table[HEAD];
    double want[2 * HEAD];
    for (int i = 0; i < 3 * HEAD; i++)
        x[i] = (float)ff_try_number(1, i);
    for (int i = 0; i < HEAD; i++)
        table[i] = (float)ff_try_number(2, i);
    for (int i = 0; i < 2 * HEAD; i++) {
        const int low = i % HEAD < HEAD / 2, c = i % (HEAD / 2);
        want[i] = low ? (double)x[i] * table[c] - (double)x[i + HEAD / 2] * table[c + HEAD / 2]
                      : (double)x[i - HEAD / 2] * table[c + HEAD / 2] + (double)x[i] * table[c];
    }
    body->rotate(x, 1, HEAD, table);
    return ff_agree(t, FF_TRY_ROWS, x, want, 2 * HEAD, 1e-6);
}

static int try_glu(const ff_selftest *t, const ff_body *body)
{
    float x[2 * ROOM];
    double want[ROOM];
    for (int i = 0; i < 2 * ROOM; i++)
        x[i] = 4 * (float)ff_try_number(1, i);
    for (int i = 0; i < ROOM; i++)
        want[i] = 0.5 * x[i] * (1 + erf(x[i] * 0.70710678118654752)) * x[i + ROOM];
    body->glu(x, ROOM, FF_GELU);
    return ff_agree(t, FF_TRY_ROWS, x, want, ROOM, 1e-5);
}

int ff_try_rows(const ff_selftest *t)
{
    const ff_body *body = ff_body_of(t->isa);
    return try_norm(t, body) && try_embed(t, body) && try_pool(t, body) && try_convert(t, body) && try_rotate(t, body) &&
           try_glu(t, body);
}
