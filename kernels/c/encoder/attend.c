/* Split attention into elements: FF_QUERIES queries of one head of one text. Keys are packed once per head, by the
   text's thread, or by an FF_PACK step if threads share the text. */
#include "encoder.h"

static size_t round_up(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

size_t ff_keys_floats(int64_t tokens, int head, int vector)
{
    return round_up(round_up((size_t)tokens, 2 * (size_t)vector) * (size_t)head, 16);
}

size_t ff_attention_floats(int64_t tokens, int head, int vector)
{
    const size_t padded = round_up((size_t)(tokens < FF_KEYS ? tokens : FF_KEYS), 2 * (size_t)vector);
    /* floats: sums and outputs of FF_QUERIES queries; scores, queries and int32 sums of one tile */
    return round_up(FF_QUERIES * (2 + (size_t)head) + FF_TILE_QUERIES * (padded + FF_SCORES_SPARE + 2 * (size_t)head), 16);
}

const ff_attention *ff_find_attention(int isa, int format)
{
#if defined(__x86_64__)
#if FF_HAS_AMX
    if (format == FF_BF16 && isa >= FF_AMX && __builtin_cpu_supports("avx512bf16"))
        return isa == FF_AMX ? &ff_attention_amx : &ff_attention_amx_emulated;
#endif
    if (format == FF_BF16)
        return isa == FF_AVX512 && __builtin_cpu_supports("avx512bf16") ? &ff_attention_avx512_bf16 : NULL;
    if (format == FF_INT8)  /* not with AMX: bfloat16 is as fast */
        return isa == FF_AVX512 && __builtin_cpu_supports("avx512vnni") ? &ff_attention_avx512_vnni : NULL;
    if (format == FF_FLOAT && isa != FF_PORTABLE)
        return isa == FF_AVX2 ? &ff_attention_avx2 : &ff_attention_avx512;
#elif defined(__aarch64__)
    if (format == FF_FLOAT && isa != FF_PORTABLE)
        return &ff_attention_neon;
#endif
    return format == FF_FLOAT && isa == FF_PORTABLE ? &ff_attention_portable : NULL;
}

/* Choose a text's attention: bfloat16 instead of int8 if short. Only the text's length decides. */
static const ff_attention *attention_for(int isa, int format, int64_t tokens)
{
    const ff_attention *shorter = format == FF_INT8 && tokens < FF_BYTES_FROM ? ff_find_attention(isa, FF_BF16) : NULL;
    return shorter ? shorter : ff_find_attention(isa, format);
}

static ff_head head_of(const ff_call *c, const ff_attend_step *s, const ff_group *g, const int64_t *offsets, int64_t h)
{
    const ff_encoder *e = c->e;
    const ptrdiff_t ldq = e->strides[s->source], ldout = e->strides[s->target];
    const int64_t bytes = s->format == FF_FLOAT ? 4 : 2, half = s->result == FF_BF16;
    const int64_t row = offsets[0] - g->row;
    const float *biases = s->biases < 0 ? NULL : (const float *)(e->memory + s->biases);
    return (ff_head){
        .q = g->at[s->source] + row * ldq + h * 3 * e->head * bytes, .ldq = ldq,
        .out = g->at[s->target] + row * ldout + h * e->head * (half ? 2 : 4), .ldout = ldout, .half = (int)half,
        .tokens = offsets[1] - offsets[0], .size = e->head, .window = s->window, .reach = s->reach,
        .bias = biases ? biases + h * (2 * (s->reach + FF_BIAS_MARGIN) + 1) : NULL,
    };
}

static int64_t blocks_of(int64_t tokens)
{
    return (tokens + FF_QUERIES - 1) / FF_QUERIES;
}

size_t ff_shared_floats(const ff_encoder *e, int64_t rows)
{
    _Static_assert(4 * 2 * FF_AVX512_VECTOR <= FF_QUERIES, "a whole panel more for each text is less than a quarter");
    return rows > FF_QUERIES ? (size_t)e->heads * ff_keys_floats(rows + rows / 4, e->head, ff_isa_vector(e->isa)) : 0;
}

int64_t ff_attend_elements(const ff_call *c, const ff_attend_step *s, const ff_group *g)
{
    int64_t elements = 0;
    for (const int64_t *text = c->in->offsets + g->text; text < c->in->offsets + g->text + g->texts; text++) {
        const int64_t blocks = blocks_of(text[1] - text[0]);
        elements += s->kind == FF_ATTEND ? c->e->heads * blocks : g->keys && blocks > 1 ? c->e->heads : 0;
    }
    return elements;
}

void ff_attend(const ff_call *c, const ff_attend_step *s, const ff_group *g, int64_t from, int64_t to, float *scratch)
{
    const ff_encoder *e = c->e;
    float *shared = g->keys;
    for (const int64_t *text = c->in->offsets + g->text; text < c->in->offsets + g->text + g->texts && to > 0; text++) {
        const int64_t tokens = text[1] - text[0], blocks = blocks_of(tokens), own = !g->keys || blocks == 1;
        const int64_t per_head = s->kind == FF_ATTEND ? blocks : !own, count = e->heads * per_head;
        const size_t floats = ff_keys_floats(tokens, e->head, ff_isa_vector(e->isa));
        const ff_attention *attention = attention_for(e->isa, (int)s->format, tokens);
        for (int64_t i = from > 0 ? from : 0; i < to && i < count; i++) {
            const int64_t h = i / per_head, b = i % per_head;
            const ff_head head = head_of(c, s, g, text, h);
            float *keys = own ? scratch : shared + (size_t)h * floats;
            if (s->kind == FF_PACK || (own && (b == 0 || i == from)))
                attention->pack_keys(&head, keys);
            if (s->kind == FF_ATTEND)
                attention->attend(&head, b * tokens / blocks, (b + 1) * tokens / blocks, keys, own ? scratch + floats : scratch);
        }
        if (!own)
            shared += (size_t)e->heads * floats;
        from -= count;
        to -= count;
    }
}
