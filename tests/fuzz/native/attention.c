/* Attention of one head against softmax in float64, with windows and biases, whatever the blocks of queries. */
#include "encoder/encoder.h"

#include "fuzz.h"
#include "mxcsr.h"
#include "scalar.h"

typedef struct {
    ff_head h;
    int format, isa;
    double *scores;
} attention;

static double number(const attention *a, int64_t token, int64_t column)
{
    const char *row = a->h.q + token * a->h.ldq;
    uint16_t half;
    float x;
    if (a->format == FF_FLOAT)
        return memcpy(&x, row + 4 * column, 4), (double)x;
    return memcpy(&half, row + 2 * column, 2), (double)ff_of_bits((uint32_t)half << 16);
}

static void check_query(attention *a, int64_t query)
{
    const ff_head *h = &a->h;
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < h->tokens; k++) {
        int64_t distance = k - query;
        a->scores[k] = h->window >= 0 && llabs(distance) > h->window ? -INFINITY : 0;
        for (int64_t c = 0; c < h->size; c++)
            a->scores[k] += number(a, query, c) * number(a, k, h->size + c);
        distance = distance < -h->reach ? -h->reach : distance > h->reach ? h->reach : distance;
        a->scores[k] += h->bias ? (double)h->bias[h->reach + FF_BIAS_MARGIN + distance] : 0;
        largest = fmax(largest, a->scores[k]);
    }
    for (int64_t k = 0; k < h->tokens; k++)
        sum += a->scores[k] = exp(a->scores[k] - largest);
    const double most = a->format == FF_FLOAT ? 1e-4 : a->format == FF_BF16 ? 0.05 : 0.2;
    for (int64_t c = 0; c < h->size; c += 5) {
        double wanted = 0;
        uint16_t half;
        float found;
        for (int64_t k = 0; k < h->tokens; k++)
            wanted += a->scores[k] / sum * number(a, k, 2 * h->size + c);
        if (h->half)
            memcpy(&half, h->out + query * h->ldout + 2 * c, 2), found = ff_of_bits((uint32_t)half << 16);
        else
            memcpy(&found, h->out + query * h->ldout + 4 * c, 4);
        CHECK(fabs((double)found - wanted) <= most, "query %lld, column %lld: %g is not %g", (long long)query, (long long)c, (double)found, wanted);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = source_of(data, size);
    attention a = {.isa = take_isa(&s), .format = take(&s, FF_INT8)};
    while (!ff_attention_of(a.isa, a.format))
        a.format = (a.format + 1) % FF_FORMATS;
    const int vector = ff_isa_vector(a.isa), kind = take(&s, 9);
    ff_head *h = &a.h;
    h->size = 2 * vector * (1 + take(&s, 1));
    h->tokens = 1 + take(&s, kind == 0 ? 700 : kind < 3 ? 200 : 40);
    h->window = take(&s, 2) ? -1 : take(&s, 60);
    h->half = a.format != FF_FLOAT && take(&s, 1);
    h->reach = take(&s, 1) ? 0 : take(&s, 50);
    const int64_t bytes = a.format == FF_FLOAT ? 4 : 2, biases = 2 * (h->reach + FF_BIAS_MARGIN) + 1;
    h->ldq = 3 * h->size * bytes, h->ldout = h->size * (h->half ? 2 : 4);
    char *q = room((size_t)(h->ldq * h->tokens));
    float *bias = room((size_t)biases * 4);
    for (int64_t i = 0; i < h->tokens * 3 * h->size; i++) {
        const float x = (float)(take_byte(&s) - 128) / 128;
        const uint16_t half = ff_bfloat16(ff_bits(x));
        memcpy(q + i * bytes, bytes == 4 ? (const void *)&x : &half, (size_t)bytes);
    }
    for (int64_t i = 0; i < biases; i++)
        bias[i] = i <= FF_BIAS_MARGIN || i > biases - 1 - FF_BIAS_MARGIN ? 0 : (float)(take_byte(&s) - 128) / 64;
    for (int64_t i = biases - 1 - FF_BIAS_MARGIN; i < biases; i++)
        bias[i] = bias[biases - 1 - FF_BIAS_MARGIN];
    for (int64_t i = 0; i < FF_BIAS_MARGIN; i++)
        bias[i] = bias[FF_BIAS_MARGIN];
    h->bias = take(&s, 1) ? bias : NULL, h->reach = h->bias ? h->reach : 0;
    h->q = q, h->out = room((size_t)(h->ldout * h->tokens));
    float *keys = room(ff_keys_floats(h->tokens, h->size, vector) * 4), *scratch = room(ff_attention_floats(h->tokens, h->size, vector) * 4);
    const ff_attention *of = ff_attention_of(a.isa, a.format);
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    ff_switch_tiles(a.isa, 1);
    of->pack_keys(h, keys);
    for (int64_t from = 0, to; from < h->tokens; from = to) {
        to = from + 1 + take(&s, FF_QUERIES - 1);
        to = to < h->tokens ? to : h->tokens;
        of->attend(h, from, to, keys, scratch);
    }
    ff_switch_tiles(a.isa, 0);
    ff_set_mxcsr(csr);
    a.scores = room((size_t)h->tokens * 8);
    for (int i = 0; i < 3; i++)
        check_query(&a, take(&s, (int)h->tokens - 1));
    free(q), free(bias), free(h->out), free(keys), free(scratch), free(a.scores);
    return 0;
}
