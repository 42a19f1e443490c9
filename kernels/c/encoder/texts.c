#include <math.h>

#include "encoder.h"

#define LEAST_WEIGHT 1e-9f  /* divisor if all weights are 0, as in Sentence Transformers */

/* Set weights (tokens), one factor per token, and return the divisor of the weighted sum. The first `skip` tokens, the
   prompt, are not in the sum. If each id of the vocabulary has a weight, the prompt still counts in the divisor, as in
   Sentence Transformers. */
static float weigh_tokens(const ff_encoder *e, const int32_t *ids, int64_t tokens, int64_t skip, int by_position, float *weights)
{
    double all = 0, kept = 0;
    for (int64_t i = 0; i < tokens; i++) {
        const float w = e->token_weights ? e->token_weights[ids[i]] : 1.0f;
        weights[i] = by_position ? w * (float)(i + 1) : w;
        all += (double)w;
        kept += i < skip ? 0 : (double)weights[i];
    }
    const double divisor = e->token_weights ? all : kept;
    return divisor > 0 ? (float)divisor : LEAST_WEIGHT;
}

void ff_pool(const ff_call *c, const ff_pool_step *s, int64_t text, const float *x, ptrdiff_t ldx, float *weights, float *to)
{
    const int64_t *offsets = c->in->offsets + text, tokens = offsets[1] - offsets[0];
    const int64_t skip = c->in->skip < tokens ? c->in->skip : tokens;
    const float share = *(const float *)(c->e->memory + s->share);
    float divisor = weigh_tokens(c->e, c->in->ids + offsets[0], tokens, skip, s->mode == FF_POSITION_MEAN, weights);
    int64_t first = skip, count = tokens - skip;
    switch (s->mode) {
    case FF_LARGEST_OF:
        c->body->largest(x + skip * ldx, ldx, weights + skip, count, s->width, to);
        return;
    case FF_MEAN_SQRT: divisor = sqrtf(divisor); break;
    case FF_FIRST_TOKEN:
        first = skip < tokens ? skip : 0;
        break;
    case FF_LAST_TOKEN:
        first = tokens - 1;
        weights[first] *= skip < tokens ? 1.0f : 0.0f;
        break;
    default: break;
    }
    if (s->mode == FF_FIRST_TOKEN || s->mode == FF_LAST_TOKEN)
        count = 1, divisor = 1;
    c->body->pool(x + first * ldx, ldx, weights + first, count, s->width, divisor, share, (int)s->first, to);
}

void ff_normalise_row(float *x, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += (double)x[i] * (double)x[i];
    const float norm = (float)sqrt(sum), divisor = norm < 1e-12f ? 1e-12f : norm;
    for (int64_t i = 0; i < width; i++)
        x[i] /= divisor;
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));  /* threshold of torch.nn.Softplus */
}

static float activate(int64_t activation, float x)
{
    switch (activation) {
    case FF_MAP_TANH: return tanhf(x);
    case FF_MAP_RELU: return x < 0 ? 0 : x;
    case FF_MAP_GELU: return 0.5f * x * erfcf(-x * 0.70710678f);
    case FF_MAP_SIGMOID: return 1 / (1 + expf(-x));
    case FF_MAP_SILU: return x / (1 + expf(-x));
    case FF_MAP_ELU: return x > 0 ? x : expm1f(x);
    case FF_MAP_LEAKY_RELU: return x > 0 ? x : 0.01f * x;
    case FF_MAP_SOFTPLUS: return softplus(x);
    case FF_MAP_SOFTSIGN: return x / (1 + fabsf(x));
    case FF_MAP_RELU6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case FF_MAP_HARDTANH: return x < -1 ? -1 : x > 1 ? 1 : x;
    case FF_MAP_MISH: return x * tanhf(softplus(x));
    default: return x;
    }
}

void ff_activate_row(int64_t activation, float *x, int64_t width, const float *add)
{
    for (int64_t i = 0; i < width; i++)
        x[i] = activate(activation, x[i]) + (add ? add[i] : 0);
}
