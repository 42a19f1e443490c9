/* Each operation rounds once, so vectorised code has the same bits. */
#include <stdatomic.h>
#include <string.h>

#include "mxcsr.h"
#include "packing.h"
#include "scalar.h"

#define CHUNK 16384              /* numbers that a thread converts at a time */
#define ROW 256                  /* numbers widened at a time */
#define UNITS 16                 /* units transposed at a time: one or two cache lines of each row */

typedef struct {
    const ff_matrix *matrices;
    int64_t count;
    int panel;
    int32_t *bad;
    char *workspace;
    size_t space;
    _Atomic int64_t next;        /* next panel, counted over all matrices */
    _Atomic int32_t *flags;
} packing;

typedef struct {
    const char *from;
    char *to;
    int64_t count;
    int stored, half;
    _Atomic int64_t next;
    _Atomic int32_t largest;
} conversion;

int ff_stored_size(int stored)
{
    return stored == FF_STORED_FLOAT ? 4 : 2;
}

/* Widen from (n) to float32 `to` (n), exactly. Returns the bits of the largest magnitude; NaN is the largest. */
FF_CLONES static int32_t widen(const char *restrict from, int stored, int64_t n, float *restrict to)
{
    int32_t largest = 0;
    if (stored == FF_STORED_FLOAT) {
        memcpy(to, from, (size_t)n * 4);
    } else if (stored == FF_STORED_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, from + 2 * i, 2);
            const uint32_t bits = (uint32_t)h << 16;
            memcpy(to + i, &bits, 4);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {  /* times 2^112 corrects the exponent, also of subnormals */
            uint16_t h;
            memcpy(&h, from + 2 * i, 2);
            const uint32_t small = (uint32_t)(h & 0x7fff) << 13;
            uint32_t bits = ff_bits(ff_of_bits(small) * 0x1p112f);
            bits |= (uint32_t)(h & 0x8000) << 16 | (small >= 0x0f800000 ? FF_NOT_FINITE : 0u);
            memcpy(to + i, &bits, 4);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(ff_bits(to[i]) & 0x7fffffff);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

FF_CLONES static void to_bfloat16(const float *restrict from, int64_t n, uint16_t *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = ff_bfloat16(ff_bits(from[i]));
}

/* to (n) = from (n) * inverse, rounded; returns the sum of `to`. Products must be in -127 ... 127. */
FF_CLONES static int32_t to_int8(const float *restrict from, int64_t n, float inverse, int8_t *restrict to)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t whole = (int32_t)(ff_bits(from[i] * inverse + FF_ROUNDER) - FF_ROUNDER_BITS);
        sum += whole;
        to[i] = (int8_t)whole;
    }
    return sum;
}

FF_CLONES static void to_half(const float *restrict from, int64_t n, char *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = ff_bits(from[i]);
        const uint32_t sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        const uint32_t low = ff_bits(ff_of_bits(bits) + 0.5f);  /* this addition rounds subnormal halves */
        const uint32_t normal = (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
        const uint32_t subnormal = -(uint32_t)(bits < 0x38800000);  /* a mask, not a branch, to vectorise */
        const uint16_t half = (uint16_t)(sign | (subnormal & (low - 0x3f000000)) | (~subnormal & normal));
        memcpy(to + 2 * i, &half, 2);
    }
}

/* from (panel, bytes; rows `stride` bytes apart) -> to (bytes / unit, panel) of units. */
FF_SCALAR void transpose_units(const char *restrict from, size_t stride, size_t bytes, int panel, char *restrict to, const int64_t unit)
{
    const int64_t units = (int64_t)bytes / unit;
    for (int64_t s = 0; s < units; s += UNITS) {
        const int64_t stop = s + UNITS < units ? s + UNITS : units;
        for (int64_t i = s; i < stop; i++)
            for (int r = 0; r < panel; r++)
                memcpy(to + unit * (i * panel + r), from + (size_t)r * stride + (size_t)(unit * i), (size_t)unit);
    }
}

FF_CLONES static void transpose(const char *restrict from, size_t stride, size_t bytes, int panel, char *restrict to, int64_t together)
{
    if (together == 2)
        transpose_units(from, stride, bytes, panel, to, 8);
    else
        transpose_units(from, stride, bytes, panel, to, 4);
}

/* Convert row r to staged (groups * padded). row (groups * padded) is scratch; its padding is zero. */
static void stage_row(const ff_matrix *m, int64_t r, float *row, char *staged, _Atomic int32_t *bad)
{
    const int64_t inner = m->groups * m->padded, size = m->columns / m->groups, from = m->rows[r];
    const size_t bytes = (size_t)(inner / m->lanes) * 4;
    int32_t largest = 0, sum;
    if (from < 0) {
        memset(staged, 0, bytes);
        if (m->lanes == 4)
            m->scale[r] = 0, m->shift[r] = 0;
        return;
    }
    const int64_t part = from / m->part_rows;
    const char *source = m->parts[part] + from % m->part_rows * m->columns * ff_stored_size(m->stored);
    for (int64_t g = 0; g < m->groups; g++, source += size * ff_stored_size(m->stored)) {
        const int32_t found = widen(source, m->stored, size, row + g * m->padded);
        largest = found > largest ? found : largest;
    }
    if (largest > FF_LARGEST) {  /* NaN too */
        atomic_fetch_or(bad, 1 << part);
        return;
    }
    const float factor = part ? 1.0f : m->factor;
    if (factor != 1.0f)
        for (int64_t i = 0; i < inner; i++)
            row[i] *= factor;
    for (int64_t i = 0; m->by && i < m->columns; i++) {
        row[i] *= m->by[i];
        const int32_t bits = (int32_t)(ff_bits(row[i]) & 0x7fffffff);
        largest = i == 0 || bits > largest ? bits : largest;
    }
    if (m->lanes == 1) {
        memcpy(staged, row, bytes);
    } else if (m->lanes == 2) {
        to_bfloat16(row, inner, (uint16_t *)(void *)staged);
    } else {
        const float most = ff_of_bits((uint32_t)largest) * (m->by ? 1.0f : factor);
        const float scale = most / 127.0f;
        sum = to_int8(row, inner, scale >= 0x1p-126f ? 1.0f / scale : 0.0f, (int8_t *)staged);
        m->scale[r] = scale;
        m->shift[r] = -m->zero * sum;
    }
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void pack_panels(void *context, int thread)
{
    packing *p = context;
    char *scratch = thread ? ff_scratch(p->space) : p->workspace;
    int64_t first = 0, padding_of = -1;
    if (!scratch)  /* without memory, leave the work to other threads */
        return;
    const ff_mxcsr csr = ff_set_mxcsr(FF_DEFAULT);
    const ff_matrix *m = p->matrices;
    for (int64_t i; (i = atomic_fetch_add(&p->next, 1)) >= 0;) {
        while (m < p->matrices + p->count && i - first >= m->height / p->panel)
            first += m->height / p->panel, m++;
        if (m == p->matrices + p->count)
            break;
        const int64_t inner = m->groups * m->padded, r = (i - first) * p->panel;
        const size_t bytes = (size_t)(inner / m->lanes) * 4;
        const size_t stride = whole_lines(bytes) + 64;  /* spreads rows over cache sets */
        float *row = (float *)(void *)scratch;
        char *staged = scratch + whole_lines((size_t)inner * 4);
        if (padding_of != m - p->matrices)
            memset(row, 0, (size_t)inner * 4), padding_of = m - p->matrices;
        for (int k = 0; k < p->panel; k++)
            stage_row(m, r + k, row, staged + (size_t)k * stride, p->flags + padding_of);
        const size_t spare = (size_t)m->spare * 4 * (size_t)p->panel;
        char *panel = m->panels + (size_t)(i - first) * (bytes * (size_t)p->panel + spare);
        transpose(staged, stride, bytes, p->panel, panel, m->together);
        memset(panel + bytes * (size_t)p->panel, 0, spare);
    }
    ff_set_mxcsr(csr);
}

int ff_pack(const ff_matrix *matrices, int64_t count, int panel, int32_t *bad, int threads)
{
    packing p = {.matrices = matrices, .count = count, .panel = panel};
    for (int64_t i = 0; i < count; i++) {
        const size_t inner = (size_t)(matrices[i].groups * matrices[i].padded);
        const size_t space = whole_lines(inner * 4) + (size_t)panel * (whole_lines(inner / (size_t)matrices[i].lanes * 4) + 64);
        p.space = space > p.space ? space : p.space;
    }
    const size_t flags = whole_lines(sizeof(_Atomic int32_t) * (size_t)count);
    char *scratch = count ? ff_scratch(p.space + flags) : NULL;
    if (!scratch)
        return count ? -1 : 0;
    p.workspace = scratch;
    p.flags = (_Atomic int32_t *)(void *)(scratch + p.space);
    for (int64_t i = 0; i < count; i++)
        atomic_init(p.flags + i, 0);
    ff_run(pack_panels, &p, threads);
    for (int64_t i = 0; i < count; i++)
        bad[i] = atomic_load(p.flags + i);
    return 0;
}

static void convert_chunks(void *context, int thread)
{
    conversion *c = context;
    float row[ROW];
    int32_t largest = 0;
    (void)thread;
    const ff_mxcsr csr = ff_set_mxcsr(FF_DEFAULT);
    for (int64_t i; (i = atomic_fetch_add(&c->next, CHUNK)) < c->count;)
        for (int64_t k = i, n; k < c->count && k < i + CHUNK; k += n) {
            n = c->count - k < ROW ? c->count - k : ROW;
            const int32_t found = widen(c->from + k * ff_stored_size(c->stored), c->stored, n, row);
            largest = found > largest ? found : largest;
            if (c->to && c->half && c->stored == FF_STORED_HALF)
                memcpy(c->to + 2 * k, c->from + 2 * k, (size_t)n * 2);
            else if (c->to && c->half)
                to_half(row, n, c->to + 2 * k);
            else if (c->to)
                memcpy(c->to + 4 * k, row, (size_t)n * 4);
        }
    for (int32_t seen = atomic_load(&c->largest); seen < largest;)
        if (atomic_compare_exchange_weak(&c->largest, &seen, largest))
            break;
    ff_set_mxcsr(csr);
}

int32_t ff_convert(const char *from, int stored, int64_t count, void *to, int half, int threads)
{
    conversion c = {.from = from, .to = to, .count = count, .stored = stored, .half = half};
    ff_run(convert_chunks, &c, threads);
    return atomic_load(&c.largest);
}
