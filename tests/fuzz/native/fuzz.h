/* What the targets share: numbers out of the fuzzer's bytes, memory of exactly the right size, and checks. */
#ifndef FASTFLOW_FUZZ_H
#define FASTFLOW_FUZZ_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(right, ...) \
    do { \
        if (!(right)) { \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
            abort(); \
        } \
    } while (0)

typedef struct {
    const uint8_t *at, *end;
    uint64_t state;  /* goes on where the bytes end, so that a short input fills large arrays */
} source;

static inline source source_of(const uint8_t *data, size_t size)
{
    return (source){data, data + size, 0x9e3779b97f4a7c15u};
}

static inline uint8_t take_byte(source *s)
{
    if (s->at < s->end) {
        s->state ^= *s->at;
        return *s->at++;
    }
    s->state = s->state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(s->state >> 56);
}

/* 0 to most, which is below 2^16 */
static inline int take(source *s, int most)
{
    const int low = take_byte(s);
    return (most < 256 ? low : low + 256 * take_byte(s)) % (most + 1);
}

/* Mostly small; sometimes zero, subnormal or large, never infinite */
static inline float take_float(source *s)
{
    static const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-30f, 1e30f, -1e6f, 1.0f, -1.0f};
    const int kind = take_byte(s);
    if (kind < 16)
        return odd[kind % 8];
    return (float)(kind - 128 + take_byte(s) / 256.0) / 64.0f;
}

static inline void *room(size_t bytes)  /* on a cache line, and not a byte more than asked for */
{
    void *found = NULL;
    CHECK(posix_memalign(&found, 64, bytes ? bytes : 1) == 0, "no memory");
    memset(found, 0xa5, bytes);
    return found;
}

static inline int take_isa(source *s)
{
    int isa = take(s, FF_ISAS - 1);
    while (!ff_isa_usable(isa))
        isa--;
    return isa;
}

/* Whether the bits of two arrays of floats are the same; a NaN is like any other. */
static inline int same_floats(const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !(a[i] != a[i] && b[i] != b[i]))
            return 0;
    return 1;
}

#endif
