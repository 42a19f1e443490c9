/* Attention with int8 products (AVX512-VNNI) summed exactly in int32; all else is float32. Q, K and V arrive as
   bfloat16 and are quantised:

   K: unsigned bytes, one offset and scale per channel. The offset adds the same number to all scores of a query,
      which softmax ignores; Q is multiplied by the scale.
   Q: signed bytes, one scale per query.
   V: signed bytes, one offset and scale per channel.
   Terms of softmax, e^score: unsigned bytes; 255 encodes the query's second largest score. If the largest is far
      larger, its excess over 255 is added in float32, so that other terms keep their digits. Each key has its own
      rounding offset: equal terms of similar tokens would otherwise be rounded the same way. */
#if defined(__x86_64__)
#include <math.h>

#include "encoder.h"
#include "vector_avx512.h"
FF_TARGET(FF_AVX512_FEATURES ",avx512vnni")

#include "math.inc"
#include "gemm/half.inc"
#define ATTENTION ff_attention_avx512_vnni
#include "blocks.inc"

#define ROWS 14
#define ROW_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define LANE int32_t
#define PER_STEP 1
#define ACC ivec
#define ZERO SET1I(0)
#define LOAD_ACC LOADI
#define STORE_ACC STOREI
#define ADD_ACC ADDI
#define WEIGHTS(b) const ivec b0 = LOADI(b), b1 = LOADI(b + VL)

#define NAME(x) x##_keys  /* for scores: K's bytes are the unsigned operand */
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)); \
    acc0 = _mm512_dpbusd_epi32(acc0, b0, y); \
    acc1 = _mm512_dpbusd_epi32(acc1, b1, y)
#include "gemm/tiles.inc"
#undef NAME
#undef MULTIPLY

#define NAME(x) x##_values
#define MULTIPLY(x, acc0, acc1) \
    const ivec y = SET1I(*(x)); \
    acc0 = _mm512_dpbusd_epi32(acc0, y, b0); \
    acc1 = _mm512_dpbusd_epi32(acc1, y, b1)
#include "gemm/tiles.inc"

#define LOG2_E 1.44269504f
#define LARGEST_TERM 255
#define LOG2_LARGEST_TERM 7.99435344f
#define NEAR 2   /* if the two largest scores are closer (log2), 255 encodes the largest */
#define OFFSETS 64  /* number of rounding offsets, spread evenly over keys 2, 4 or 16 apart */
/* at most 0.45: a term of 255.03 still fits a byte */
#define OFFSET(i) ((float)((i) * 37 % OFFSETS) - 31.5f) * (0.92f / OFFSETS)
#define FOUR_OFFSETS(i) OFFSET(i), OFFSET((i) + 1), OFFSET((i) + 2), OFFSET((i) + 3)
#define MOST_ERR 0.03f
#define FAR 24   /* scores this far (log2) below the largest have negligible terms */

INLINE vec load_bfloat16(const char *p)
{
    return LOWER(_mm512_cvtepu16_epi32(_mm256_loadu_si256(KEPT_AS(__m256i, p))));
}

INLINE __m128i to_bytes(const vec v)
{
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
}

/* Packed keys, in order: scales of K, scales and offsets of V (size floats each); K in panels of NR keys, four channels
   per 32-bit lane; V, four tokens per lane. */
typedef struct {
    float *key, *value, *offset, *keys, *values;
} ff_byte_operands;

INLINE ff_byte_operands operands_of(const ff_head *h, float *p)
{
    const int64_t padded = (h->tokens + NR - 1) / NR * NR, size = h->size;
    return (ff_byte_operands){p, p + size, p + 2 * size, p + 3 * size, p + 3 * size + padded * size / 4};
}

/* Transpose row (16, 16 bytes) to `to` (4, 16 lanes of four bytes), rows NR lanes apart. */
INLINE void transpose_bytes(const __m128i *row, float *to)
{
    ivec four[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i low = _mm256_set_m128i(row[i + 4], row[i]), high = _mm256_set_m128i(row[i + 12], row[i + 8]);
        four[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        const ivec a = i ? _mm512_unpackhi_epi32(four[0], four[1]) : _mm512_unpacklo_epi32(four[0], four[1]);
        const ivec b = i ? _mm512_unpackhi_epi32(four[2], four[3]) : _mm512_unpacklo_epi32(four[2], four[3]);
        STOREI(to + 2 * i * NR, _mm512_unpacklo_epi64(a, b));
        STOREI(to + (2 * i + 1) * NR, _mm512_unpackhi_epi64(a, b));
    }
}

static void pack_keys(const ff_head *h, float *packed)
{
    const ff_byte_operands p = operands_of(h, packed);
    const int64_t padded = (h->tokens + NR - 1) / NR * NR;
    for (int64_t c = 0; c < h->size; c += VL) {
        const char *k = h->q + 2 * (h->size + c), *v = k + 2 * h->size;
        vec low = load_bfloat16(k), high = low, least = load_bfloat16(v), most = least, finite = SET1(0);
        for (int64_t t = 0; t < h->tokens; t++) {  /* MIN ignores a NaN, but x * 0 keeps it */
            const vec x = load_bfloat16(k + t * h->ldq), y = load_bfloat16(v + t * h->ldq);
            low = MIN(low, x), high = MAX(high, x), least = MIN(least, y), most = MAX(most, y);
            finite = FMA(ADD(x, y), SET1(0), finite);
        }
        const vec reach = MAX(SUB(high, low), SET1(1e-30f)), span = MAX(SUB(most, least), SET1(1e-30f));
        const vec by = DIV(SET1(255), reach), times = DIV(SET1(254), span);
        const vec middle = FMA(SUB(most, least), SET1(0.5f), least);
        STORE(p.key + c, MUL(reach, SET1(LOG2_E / 255)));
        STORE(p.value + c, MUL(span, SET1(1.0f / 254)));
        STORE(p.offset + c, ADD(middle, finite));
        for (int64_t t = 0; t < padded; t += VL) {
            __m128i row[16];
            UNROLL for (int i = 0; i < 16; i++)
                row[i] = t + i < h->tokens ? to_bytes(MUL(SUB(load_bfloat16(k + (t + i) * h->ldq), low), by)) : _mm_setzero_si128();
            transpose_bytes(row, p.keys + (t / NR * h->size + c) / 4 * NR + t % NR);
        }
        for (int64_t t = 0; t < h->tokens; t += 4) {
            ivec lane = SET1I(0);
            UNROLL for (int i = 0; i < 4; i++)
                if (t + i < h->tokens) {
                    const ivec x = _mm512_cvtps_epi32(MUL(SUB(load_bfloat16(v + (t + i) * h->ldq), middle), times));
                    lane = _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_and_si512(x, SET1I(255)), 8 * i));
                }
            STOREI(p.values + t / 4 * h->size + c, lane);
        }
    }
}

/* Quantise q (size, bfloat16) times K's scales key (size) to `to` (size). Returns the unit of its scores;
   NaN if q is not finite. */
INLINE float quantise_query(const ff_head *h, const char *q, const float *key, int8_t *to)
{
    vec most = SET1(1e-30f), finite = SET1(0);
    for (int c = 0; c < h->size; c += VL) {
        const vec x = MUL(load_bfloat16(q + 2 * c), LOAD(key + c));
        most = MAX(most, MAX(x, SUB(SET1(0), x)));
        finite = FMA(x, SET1(0), finite);
    }
    const float largest = LARGEST(most);
    for (int c = 0; c < h->size; c += VL)
        _mm_storeu_si128((__m128i *)(void *)(to + c), to_bytes(MUL(MUL(load_bfloat16(q + 2 * c), LOAD(key + c)), SET1(127 / largest))));
    return largest / 127 + _mm512_reduce_add_ps(finite);
}

/* Mask of the keys i to i + VL in [from, to). */
INLINE __mmask16 seen_lanes(const int how, const int64_t i, const int64_t from, const int64_t to)
{
    const unsigned mask = to - i < VL ? (1u << (to - i)) - 1 : 0xffff;
    return (__mmask16)(how & WINDOWED && i < from ? mask & 0xffff << (from - i) : mask);
}

/* For each term e of a lane in `above`: add (e - 255) times the key's values to out (size), and (e - 255) to rest.
   Returns e limited to 255. Lane 0 is key i of the block. */
static __attribute__((noinline)) vec add_rest(unsigned above, const vec e, const float *values, const int64_t i,
                                              const int size, float *out, float *rest)
{
    float term[VL] __attribute__((aligned(64)));
    STORE(term, SUB(e, SET1(LARGEST_TERM)));
    for (; above; above &= above - 1) {
        const int lane = __builtin_ctz(above);
        const float *v = values + (i + lane) / 4 * size;
        const __m128i up = _mm_cvtsi32_si128(24 - 8 * (lane % 4));
        for (int c = 0; c < size; c += VL) {
            const ivec value = _mm512_srai_epi32(_mm512_sll_epi32(LOADI(v + c), up), 24);
            STORE(out + c, FMA(SET1(term[lane]), TO_FLOAT(value), LOAD(out + c)));
        }
        *rest += term[lane];
    }
    return MIN(e, SET1(LARGEST_TERM));
}

/* 2^x with a relative error below 2e-4. */
INLINE vec power_of_2(const vec x)
{
    const vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    const vec e = FMA(FMA(FMA(SET1(0.07802452f), f, SET1(0.22606716f)), f, SET1(0.69583354f)), f, SET1(0.99992521f));
    return _mm512_scalef_ps(e, x);
}

typedef struct {          /* one query against a block of keys */
    int64_t from, to;     /* keys of the block within the query's window */
    int64_t first;        /* index of the block's first key in the text */
    int64_t distance;     /* position of the first key minus the query's */
    float *scores;        /* (padded) int32 scores, later replaced by byte terms */
    float unit, spoilt;   /* value of a score's unit; 0, or NaN if the query is not finite */
    float largest, base;  /* largest score (log2) in the block; score that 255 encodes */
} ff_row;

/* Set r->largest and r->base. If BIASED, replace r's int32 scores by float32 scores plus bias. */
INLINE void find_base(const int how, const ff_head *h, ff_row *r)
{
    ivec m = SET1I(INT32_MIN);
    vec most = SET1(-1e30f);
    const vec unit = SET1(r->unit);
    const int64_t begin = how & WINDOWED ? r->from / VL * VL : 0;
    for (int64_t i = begin; i < r->to; i += VL) {
        const __mmask16 here = seen_lanes(how, i, r->from, r->to);
        if (how & BIASED) {
            const vec v = FMA(TO_FLOAT(LOADI(r->scores + i)), unit, MUL(load_biases(h, r->distance + i), SET1(LOG2_E)));
            STORE(r->scores + i, v);
            most = _mm512_mask_max_ps(most, here, most, v);
        } else
            m = _mm512_mask_max_epi32(m, here, m, LOADI(r->scores + i));
    }
    if (!(how & BIASED) && r->from < r->to)
        most = MUL(TO_FLOAT(m), unit);
    const float largest = LARGEST(most);
    const float second = LARGEST(_mm512_mask_mov_ps(most, _mm512_cmp_ps_mask(most, SET1(largest), _CMP_EQ_OQ), SET1(-1e30f)));
    r->largest = largest;
    r->base = largest - second < NEAR ? largest : second > largest - FAR ? second : largest - FAR;
}

/* Replace r's scores by byte terms; if `alone`, add excess over 255 times V to out (size). Returns the sum of terms. */
INLINE float make_terms(const int how, const int alone, const ff_row *r, const int64_t padded, const float *values, const int size,
                        float *out)
{
    const int64_t begin = how & WINDOWED ? r->from / VL * VL : 0;
    static const float offsets[OFFSETS] __attribute__((aligned(64))) = {
        FOUR_OFFSETS(0), FOUR_OFFSETS(4), FOUR_OFFSETS(8), FOUR_OFFSETS(12), FOUR_OFFSETS(16), FOUR_OFFSETS(20),
        FOUR_OFFSETS(24), FOUR_OFFSETS(28), FOUR_OFFSETS(32), FOUR_OFFSETS(36), FOUR_OFFSETS(40), FOUR_OFFSETS(44),
        FOUR_OFFSETS(48), FOUR_OFFSETS(52), FOUR_OFFSETS(56), FOUR_OFFSETS(60),
    };
    const vec unit = SET1(r->unit), less = SET1(LOG2_LARGEST_TERM - r->base);
    int8_t *to = (int8_t *)(void *)r->scores;
    float rest = 0;
    ivec whole = SET1I(0);
    int64_t i = begin;
    for (; i < r->to; i += VL) {
        const vec s = how & BIASED ? ADD(LOAD(r->scores + i), less) : FMA(TO_FLOAT(LOADI(r->scores + i)), unit, less);
        vec e = _mm512_maskz_mov_ps(seen_lanes(how, i, r->from, r->to), power_of_2(s));
        if (alone) {
            const __mmask16 above = _mm512_cmp_ps_mask(e, SET1(LARGEST_TERM + MOST_ERR), _CMP_GT_OQ);
            if (above)
                e = add_rest(above, e, values, i, size, out, &rest);
        }
        const ivec n = _mm512_cvtps_epi32(ADD(e, LOAD(offsets + (r->first + i) % OFFSETS)));
        whole = ADDI(whole, n);
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm512_cvtepi32_epi8(n));
    }
    for (; i < padded; i += VL)
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_setzero_si128());
    for (i = 0; i < begin; i += VL)
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_setzero_si128());
    return rest + (float)_mm512_reduce_add_epi32(whole);
}

/* Replace scores of queries rows (count) by terms. Running values over blocks of keys: top (count), the score that 255
   encodes; sums (count), of terms; out (count, size). Two passes hide latency. */
INLINE void softmax(const int how, const ff_head *h, ff_row *rows, const int64_t count, const int64_t padded, const int first,
                    const float *values, float *top, float *sums, float *out)
{
    for (ff_row *r = rows; r < rows + count; r++)
        find_base(how, h, r);
    for (int64_t i = 0; i < count; i++, out += h->size) {
        ff_row *r = rows + i;
        float factor[VL] __attribute__((aligned(64))) = {0};
        if (!first) {
            r->base = r->base > top[i] ? r->base : top[i];
            STORE(factor, exponential(SET1((top[i] - r->base) / LOG2_E)));
        }
        for (int c = 0; c < h->size; c += VL)
            STORE(out + c, first ? SET1(0) : MUL(LOAD(out + c), SET1(factor[0])));
        const float sum = r->largest > r->base ? make_terms(how, 1, r, padded, values, h->size, out)
                                               : make_terms(how, 0, r, padded, values, h->size, out);
        top[i] = r->base;
        sums[i] = (first ? 0 : sums[i] * factor[0]) + sum + r->spoilt;
    }
}

#define SOFTMAX(how) \
    static void softmax_##how(const ff_head *h, ff_row *rows, int64_t count, int64_t padded, int first, \
                              const float *values, float *top, float *sums, float *out) \
    { \
        softmax(how, h, rows, count, padded, first, values, top, sums, out); \
    }
SOFTMAX(0)
SOFTMAX(1)
SOFTMAX(2)
SOFTMAX(3)
static void (*const softmax_of[])(const ff_head *, ff_row *, int64_t, int64_t, int, const float *, float *, float *,
                                  float *) = {
    softmax_0, softmax_1, softmax_2, softmax_3,
};

static void attend_block(const ff_head *h, const int64_t row, const int64_t rows, const int64_t start, const int64_t stop,
                         const int first, const float *keys, float *scores, float *top, float *sums, float *out)
{
    const int64_t padded = (stop - start + NR - 1) / NR * NR, steps = h->size / 4;
    const ptrdiff_t lds = padded + FF_SCORES_SPARE;
    const ff_byte_operands p = operands_of(h, (float *)(uintptr_t)keys);
    float *part = scores + MR * lds, *q = part + MR * h->size, *values = p.values + start / 4 * h->size;
    ff_row states[MR];
    for (int64_t r = 0; r < rows; r++) {
        const float unit = quantise_query(h, h->q + (row + r) * h->ldq, p.key, (int8_t *)(void *)(q + r * steps)), spoilt = unit - unit;
        states[r] = (ff_row){
            .first = start, .distance = start - row - r, .scores = scores + r * lds, .unit = spoilt == 0 ? unit : 0, .spoilt = spoilt,
        };
        find_seen_keys(h, row + r, start, stop, padded, &states[r].from, &states[r].to);
    }
    for (int64_t t = 0; t < padded; t += NR)
        tiles_keys[rows](KEPT_AS(int32_t, q), steps, p.keys + (start + t) * steps, NR, steps, 0, scores + t, lds, keys, 0);
    softmax_of[(h->bias != NULL) * BIASED + (h->window >= 0) * WINDOWED](h, states, rows, padded, first, values, top, sums, out);
    for (int c = 0; c < h->size; c += NR)
        tiles_values[rows](KEPT_AS(int32_t, scores), lds, values + c, h->size, (stop - start + 3) / 4, 0, part + c, h->size,
                           keys, 0);
    for (int64_t i = 0; i < rows * h->size; i += VL)
        STORE(out + i, ADD(LOAD(out + i), TO_FLOAT(LOADI(part + i))));
}

INLINE void finish_query(const ff_head *h, const float *keys, const float *sum, const float share, char *to)
{
    const ff_byte_operands p = operands_of(h, (float *)(uintptr_t)keys);
    for (int c = 0; c < h->size; c += NR) {
        vec y[2];
        UNROLL for (int v = 0; v < 2; v++) {
            const int i = c + v * VL;
            y[v] = FMA(MUL(LOAD(sum + i), SET1(share)), LOAD(p.value + i), LOAD(p.offset + i));
        }
        store_panel(h, to, c, y[0], y[1]);
    }
}

FF_TARGET_END
#endif
