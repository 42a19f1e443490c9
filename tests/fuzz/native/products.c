/* Products of rows by packed weights on every instruction set and in every format: near the sum in float64 of what is stored,
   and with the same bits whatever the other rows and the panels computed together. */
#include "encoder/encoder.h"
#include "gemm/packing.h"

#include "fuzz.h"
#include "mxcsr.h"
#include "scalar.h"

enum { MOST_COLUMNS = 4 * 2 * FF_AVX512_VECTOR, LINE = 64 };

typedef struct {
    int isa, panel, bytes, lanes, apart;
    int64_t rows, inner, room, lda, ldc;
    ff_linear l;
    char *memory, *operand, *out;
    float *add;
} product;

static int take_format(source *s, int isa)
{
    int format = take(s, FF_FORMATS - 1);
    while (!ff_product_of(isa, format))
        format = (format + 1) % FF_FORMATS;
    return format;
}

static int64_t lines(int64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* The memory of a product, its weights last so that none is read beyond them. */
static void pack(product *p, source *s)
{
    ff_linear *l = &p->l;
    const int64_t columns = l->columns, spare = l->format == FF_INT8_TILES ? -l->steps & (FF_TILE_STEPS - 1) : 0;
    int32_t *rows = room((size_t)columns * 4), bad = 0;
    float *given = room((size_t)(columns * p->inner) * 4);
    l->bias = 0, l->scale = lines(4 * columns), l->shift = 2 * l->scale, l->apart = 3 * l->scale;
    l->weights = l->apart + lines(4 * columns * FF_APART);
    p->memory = room((size_t)(l->weights + 4 * columns * (l->steps + spare)));
    for (int64_t i = 0; i < columns * FF_APART; i++)
        ((float *)(void *)(p->memory + l->apart))[i] = take_float(s) * 0x1p-20f;
    for (int64_t i = 0; i < columns; i++) {
        const int tie = l->result == FF_BF16 && i % 4 == 0, bias = take_byte(s), row = take(s, (int)columns);
        ((float *)(void *)p->memory)[i] = tie ? 1 + (float)(i / 2 + 1) * 0x1p-8f : (float)(bias - 128) / 16;
        rows[i] = tie ? -1 : row - 1;  /* a tie of bfloat16, and no weights */
    }
    for (int64_t i = 0; i < columns * p->inner; i++)
        given[i] = (float)(take_byte(s) - 128) / 64;
    ff_matrix m = {.parts = {(char *)given}, .rows = rows, .part_rows = columns, .columns = p->inner, .height = columns, .groups = 1,
                   .padded = p->inner, .lanes = p->lanes, .spare = spare, .panels = p->memory + l->weights,
                   .scale = (float *)(void *)(p->memory + l->scale), .shift = (int32_t *)(void *)(p->memory + l->shift),
                   .zero = l->format == FF_INT8 ? FF_ZERO_POINT : 0, .stored = FF_STORED_FLOAT, .factor = 1};
    CHECK(ff_pack(&m, 1, p->panel, &bad, 1) == 0 && !bad, "packing fails");
    l->apart = p->apart ? l->apart : -1;
    free(rows), free(given);
}

static void fill_operand(product *p, source *s)
{
    const int32_t numbers[FF_APART] = {0, 1, 2, 3, 4, 5, 6, 7};
    float *x = room((size_t)p->inner * 4);
    p->lda = lines(p->bytes * p->inner) + LINE;
    p->operand = room((size_t)(p->lda * p->room));
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t k = 0; k < p->inner; k++)
            x[k] = (float)(take_byte(s) - 128) / 32;
        if (p->bytes == 4)
            memcpy(p->operand + r * p->lda, x, (size_t)p->inner * 4);
        else
            ff_body_of(p->isa)->convert(x, NULL, p->apart ? numbers : NULL, p->inner, (int)p->l.format, p->operand + r * p->lda);
    }
    free(x);
}

static double operand_number(const product *p, const char *row, int64_t k)
{
    uint16_t half;
    float x;
    if (p->bytes == 4)
        return memcpy(&x, row + 4 * k, 4), (double)x;
    if (p->bytes == 2)
        return memcpy(&half, row + 2 * k, 2), (double)ff_of_bits((uint32_t)half << 16);
    return p->l.format == FF_INT8 ? (uint8_t)row[k] - FF_ZERO_POINT : (int8_t)row[k];
}

static double weight_number(const product *p, int64_t c, int64_t k)
{
    const int64_t spare = p->l.format == FF_INT8_TILES ? -p->l.steps & (FF_TILE_STEPS - 1) : 0;
    const char *at = p->memory + p->l.weights + 4 * ((c / p->panel * (p->l.steps + spare) + k / p->lanes) * p->panel + c % p->panel) +
                     k % p->lanes * (4 / p->lanes);
    uint16_t half;
    float x;
    if (p->lanes == 1)
        return memcpy(&x, at, 4), (double)x;
    if (p->lanes == 2)
        return memcpy(&half, at, 2), (double)ff_of_bits((uint32_t)half << 16);
    return *(const int8_t *)at;
}

static double activate(int activation, double v)
{
    switch (activation) {
    case FF_GELU: return 0.5 * v * erfc(-v * 0.7071067811865476);
    case FF_GELU_TANH: return v / (1 + exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)));
    case FF_RELU_ONLY: return fmax(v, 0);
    default: return v;
    }
}

/* A result in bfloat16 is within 1.1 halves of its last digit; below 2^-20 of the sum its error counts as of that size. */
static void check(const product *p, int64_t r, int64_t c, int activation)
{
    const char *row = p->operand + r * p->lda, *at = p->out + r * p->ldc + c * (p->l.result == FF_BF16 ? 2 : 4);
    const float *scale = (const float *)(const void *)(row + p->inner), *memory = (const float *)(const void *)p->memory;
    double sum = 0, size = 1;
    for (int64_t k = 0; k < p->inner; k++) {
        const double term = operand_number(p, row, k) * weight_number(p, c, k);
        sum += term, size += fabs(term);
    }
    if (p->lanes == 4) {
        const double unit = (double)*scale * (double)((const float *)(const void *)(p->memory + p->l.scale))[c];
        sum *= unit, size *= unit;
        for (int i = 0; p->apart && i < FF_APART; i++) {
            const double term = (double)scale[1 + i] * (double)((const float *)(const void *)(p->memory + p->l.apart))[i * p->l.columns + c];
            sum += term, size += fabs(term);
        }
    }
    sum += (double)memory[c] + (p->add ? (double)p->add[r * p->l.columns + c] : 0);
    size += fabs(sum) + 256;
    const double wanted = activate(activation, sum);
    uint16_t half;
    float found;
    if (p->l.result == FF_BF16)
        memcpy(&half, at, 2), found = ff_of_bits((uint32_t)half << 16);
    else
        memcpy(&found, at, 4);
    const double digit = exp2(floor(log2(fmax(fabs(wanted), 0x1p-20 * fabs(sum) + 1e-30))) - 8);
    const double most = size * 12 * 0x1p-24 + (p->l.result == FF_BF16 ? 1.1 * digit : 0);
    if (p->l.result == FF_BF16 && p->l.format == FF_BF16 && activation == FF_LINEAR_ONLY)  /* the sum is exact in float32 */
        CHECK(half == ff_bfloat16(ff_bits((float)sum)), "row %lld, column %lld: %g is not rounded to even", (long long)r, (long long)c, sum);
    if (p->l.result == FF_BF16 || activation == FF_LINEAR_ONLY || activation == FF_RELU_ONLY)
        CHECK(fabs((double)found - wanted) <= most, "row %lld, column %lld: %g is not %g", (long long)r, (long long)c, (double)found, wanted);
    CHECK(isfinite(found), "row %lld, column %lld is not finite", (long long)r, (long long)c);
}

static void run(const product *p, const char *a, int64_t rows, int64_t from, int64_t to, char *out, int activation, const float *add)
{
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    ff_switch_tiles(p->isa, 1);
    ff_product_of(p->isa, (int)p->l.format)(p->memory, &p->l, a, p->lda, rows, from, to, out, p->ldc, activation, add, p->l.columns);
    ff_switch_tiles(p->isa, 0);
    ff_set_mxcsr(csr);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    product p = {.isa = take_isa(&s), .rows = 1 + take(&s, 70)};
    p.l.format = take_format(&s, p.isa), p.panel = 2 * ff_isa_vector(p.isa);
    p.lanes = p.l.format == FF_FLOAT ? 1 : p.l.format <= FF_BF16_WIDE ? 2 : 4;
    p.bytes = p.l.format == FF_FLOAT || p.l.format == FF_BF16_WIDE ? 4 : p.l.format == FF_BF16 ? 2 : 1;
    const int64_t panels = 1 + take(&s, 3), middle = take(&s, (int)panels);
    p.inner = p.panel * (1 + take(&s, 5)), p.l.columns = panels * p.panel, p.l.steps = p.inner / p.lanes;
    p.apart = p.lanes == 4 && take(&s, 1);
    const int rounds = p.isa >= FF_AVX512 && (p.l.format == FF_BF16 || p.l.format == FF_INT8 || p.l.format == FF_INT8_TILES);
    p.l.result = rounds && take(&s, 1) ? FF_BF16 : FF_FLOAT;
    const int activation = take(&s, p.l.result == FF_BF16 ? FF_RELU_ONLY : FF_TANH), adds = p.l.result == FF_FLOAT && activation == FF_LINEAR_ONLY && take(&s, 1);
    p.room = (p.rows + FF_SPARE_ROWS - 1) / FF_SPARE_ROWS * FF_SPARE_ROWS;
    p.ldc = p.l.columns * (p.l.result == FF_BF16 ? 2 : 4) + LINE;
    pack(&p, &s);
    fill_operand(&p, &s);
    float *add = room((size_t)(p.room * p.l.columns) * 4);
    for (int64_t i = 0; i < p.room * p.l.columns; i++)
        add[i] = (float)(take_byte(&s) - 128) / 8;
    p.add = adds ? add : NULL;
    p.out = room((size_t)(p.ldc * p.room));
    char *alone = room((size_t)(p.ldc * FF_SPARE_ROWS));
    run(&p, p.operand, p.rows, 0, middle, p.out, activation, p.add);
    run(&p, p.operand, p.rows, middle, panels, p.out, activation, p.add);
    const int64_t one = take(&s, (int)p.rows - 1) / FF_SPARE_ROWS * FF_SPARE_ROWS;  /* so that spare rows are there */
    run(&p, p.operand + one * p.lda, 1, 0, panels, alone, activation, p.add ? p.add + one * p.l.columns : NULL);
    CHECK(!memcmp(p.out + one * p.ldc, alone, (size_t)(p.l.columns * (p.l.result == FF_BF16 ? 2 : 4))), "row %lld has other bits alone", (long long)one);
    for (int i = 0; i < 24; i++)
        check(&p, take(&s, (int)p.rows - 1), take(&s, (int)p.l.columns - 1), activation);
    free(p.memory), free(p.operand), free(add), free(p.out), free(alone);
    return 0;
}
