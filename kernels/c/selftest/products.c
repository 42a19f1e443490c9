/* Self-tests of products and attention in each format, with numbers exact in all formats. */
#include <math.h>
#include <string.h>

#include "encoder/encoder.h"
#include "scalar.h"
#include "parts.h"

enum { STEPS = FF_TILE_STEPS, ROWS = 3, LDA = 256 };  /* LDA: bytes in an operand row */
#define UNIT 0.125  /* each test number is an integer from -3 to 3 times UNIT */

typedef struct {
    char weights[STEPS * 2 * FF_AVX512_VECTOR * 4];
    float bias[2 * FF_AVX512_VECTOR], scale[2 * FF_AVX512_VECTOR];
    int32_t shift[2 * FF_AVX512_VECTOR];
    char a[FF_SPARE_ROWS * LDA];
    float c[FF_SPARE_ROWS * 2 * FF_AVX512_VECTOR];
} product_of;
_Static_assert(sizeof(product_of) <= FF_TRY_BYTES, "a product fits");

/* Write x as number i of `to`, in `size` bytes: float32, bfloat16, or int8 with a zero point. */
static void put(char *to, int i, int size, double x, int zero)
{
    const float wide = (float)x;
    const uint16_t half = ff_bfloat16(ff_bits(wide));
    const uint8_t byte = (uint8_t)((int)(x / UNIT) + zero);
    memcpy(to + (ptrdiff_t)i * size, size == 4 ? (const void *)&wide : size == 2 ? (const void *)&half : (const void *)&byte,
           (size_t)size);
}

/* Fill a product's operands for `panel` columns, and the expected sums want (ROWS, panel). */
static void fill(product_of *p, int format, int panel, int together, double *want)
{
    const int size = format == FF_FLOAT ? 4 : format < FF_INT8 ? 2 : 1, lanes = 4 / size, depth = STEPS * lanes;
    const int zero = format == FF_INT8 ? FF_ZERO_POINT : 0, run = lanes * together;
    const float unit = (float)UNIT;
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < depth; k++)
            put(p->a + r * LDA, k, format == FF_BF16_WIDE ? 4 : size, ff_try_number(r, k), zero);
        if (format >= FF_INT8)
            memcpy(p->a + r * LDA + depth, &unit, sizeof unit);
    }
    for (int c = 0; c < panel; c++) {
        double sum = 0;
        for (int k = 0; k < depth; k++) {
            put(p->weights, (k / run * panel + c) * run + k % run, size, ff_try_number(k, c), 0);
            sum += ff_try_number(k, c);
        }
        p->bias[c] = (float)ff_try_number(ROWS, c);
        p->scale[c] = unit;
        p->shift[c] = -zero * (int32_t)(sum / UNIT);
        for (int r = 0; r < ROWS; r++) {
            want[r * panel + c] = p->bias[c];
            for (int k = 0; k < depth; k++)
                want[r * panel + c] += ff_try_number(r, k) * ff_try_number(k, c);
        }
    }
}

#define AT(field) (int64_t)offsetof(product_of, field)

int ff_try_product(const ff_selftest *t, int format)
{
    const ff_product product = ff_find_product(t->isa, format);
    if (!product)
        return 1;
    const int panel = 2 * ff_isa_vector(t->isa);
    double want[ROWS * 2 * FF_AVX512_VECTOR];
    product_of *p = (product_of *)(void *)t->scratch;
    fill(p, format, panel, ff_steps_together(t->isa, format), want);
    const ff_linear linear = {AT(weights), AT(bias), AT(scale), AT(shift), panel, STEPS, format, -1, FF_FLOAT};
    const ptrdiff_t ldc = panel * (ptrdiff_t)sizeof(float);
    product(t->scratch, &linear, p->a, LDA, ROWS, 0, 1, (char *)p->c, ldc, FF_LINEAR_ONLY, NULL, 0);
    if (!ff_agree(t, FF_TRY_PRODUCT + format, p->c, want, ROWS * panel, 0))
        return 0;
    for (int i = 0; i < ROWS * panel; i++)
        want[i] *= 0.5 * (1 + erf(want[i] * 0.70710678118654752));
    product(t->scratch, &linear, p->a, LDA, ROWS, 0, 1, (char *)p->c, ldc, FF_GELU, NULL, 0);
    return ff_agree(t, FF_TRY_PRODUCT + format, p->c, want, ROWS * panel, format == FF_FLOAT ? 1e-5 : 1e-3);
}

enum { TOKENS = 5, HEAD = 2 * FF_AVX512_VECTOR };

typedef struct {
    char qkv[FF_SPARE_ROWS * 3 * HEAD * 4];
    float out[FF_SPARE_ROWS * HEAD], scratch[];
} head_of;

/* want (TOKENS, HEAD) = softmax(Q K^T) V in double. */
static void attend(double *want)
{
    for (int q = 0; q < TOKENS; q++) {
        double terms[TOKENS], total = 0;
        for (int k = 0; k < TOKENS; k++) {
            double score = 0;
            for (int c = 0; c < HEAD; c++)
                score += ff_try_number(q, c) * 8 * ff_try_number(k, HEAD + c);
            total += terms[k] = exp(score);
        }
        for (int c = 0; c < HEAD; c++) {
            want[q * HEAD + c] = 0;
            for (int k = 0; k < TOKENS; k++)
                want[q * HEAD + c] += terms[k] / total * ff_try_number(k, 2 * HEAD + c);
        }
    }
}

int ff_try_attention(const ff_selftest *t, int format)
{
    const ff_attention *attention = ff_find_attention(t->isa, format);
    if (!attention)
        return 1;
    head_of *h = (head_of *)(void *)t->scratch;
    double want[TOKENS * HEAD];
    const int size = format == FF_FLOAT ? 4 : 2, vector = ff_isa_vector(t->isa);
    const size_t keys = ff_keys_floats(TOKENS, HEAD, vector);
    if (sizeof *h + sizeof(float) * (keys + ff_attention_floats(TOKENS, HEAD, vector)) > FF_TRY_BYTES)
        return 0;
    for (int r = 0; r < TOKENS; r++)
        for (int c = 0; c < 3 * HEAD; c++)
            put(h->qkv, r * 3 * HEAD + c, size, ff_try_number(r, c) * (c / HEAD == 1 ? 8 : 1), 0);
    attend(want);
    const ff_head head = {.q = h->qkv, .ldq = 3 * HEAD * size, .ldout = HEAD * 4, .tokens = TOKENS, .window = -1,
                          .out = (char *)h->out, .size = HEAD};
    attention->pack_keys(&head, h->scratch);
    attention->attend(&head, 0, TOKENS, h->scratch, h->scratch + keys);
    return ff_agree(t, FF_TRY_ATTENTION + format, h->out, want, TOKENS * HEAD, format == FF_FLOAT ? 1e-5 : 0.01);
}
