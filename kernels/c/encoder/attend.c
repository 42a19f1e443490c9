/* Attention's share of a group: which head of which text, and where its memory is. */
#include "encoder.h"

static size_t whole(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

size_t ff_keys_floats(int64_t tokens, int head, int vector)
{
    return whole(whole((size_t)tokens, 2 * (size_t)vector) * (size_t)head, 16);
}

size_t ff_attention_floats(int64_t tokens, int head, int vector, int rows)
{
    const size_t padded = whole((size_t)(tokens < FF_KEYS ? tokens : FF_KEYS), 2 * (size_t)vector);
    return whole(2 * FF_QUERIES + (size_t)rows * (padded + (size_t)head / 2 + 2 * FF_SCORES_SPARE), 16);
}

const ff_attention *ff_attention_of(int isa, int format)
{
#if defined(__x86_64__)
    if (format == FF_BF16)
        return isa >= FF_AVX512 && __builtin_cpu_supports("avx512bf16") ? &ff_attention_avx512_bf16 : NULL;
    if (format == FF_FLOAT && isa != FF_PORTABLE)
        return isa == FF_AVX2 ? &ff_attention_avx2 : &ff_attention_avx512;
#endif
    return format == FF_FLOAT && isa == FF_PORTABLE ? &ff_attention_portable : NULL;
}

void ff_attend(const ff_encoder *e, const ff_step *s, const ff_texts *in, const ff_group *g, int64_t from, int64_t to,
               float *scratch)
{
    const ff_attention *attention = ff_attention_of(e->isa, (int)s->format);
    const ptrdiff_t ldq = e->strides[s->from] / 4, ldout = e->strides[s->to] / 4;
    const float *table = s->table < 0 ? NULL : (const float *)(e->memory + s->table);
    for (int64_t i = from; i < to; i++) {
        const int64_t *at = in->offsets + g->text + i / e->heads, row = at[0] - g->row, h = i % e->heads;
        const ff_head head = {
            .q = (const float *)g->at[s->from] + row * ldq + h * 3 * e->head, .ldq = ldq,
            .out = (float *)g->at[s->to] + row * ldout + h * e->head, .ldout = ldout,
            .tokens = at[1] - at[0], .size = e->head, .window = s->window, .reach = s->reach,
            .bias = table ? table + h * (2 * (s->reach + FF_BIAS_MARGIN) + 1) : NULL,
        };
        const int64_t blocks = (head.tokens + FF_QUERIES - 1) / FF_QUERIES;
        float *keys = scratch, *rest = scratch + ff_keys_floats(head.tokens, e->head, ff_isa_vector(e->isa));
        attention->pack_keys(&head, keys);
        for (int64_t b = 0; b < blocks; b++)
            attention->attend(&head, b * head.tokens / blocks, (b + 1) * head.tokens / blocks, keys, rest);
    }
}
