#ifndef FASTFLOW_SCALAR_H
#define FASTFLOW_SCALAR_H

#include <stdint.h>
#include <string.h>

#define FF_SCALAR static inline __attribute__((always_inline))
#define FF_ROUNDER 12582912.0f      /* 1.5 * 2^23: adding it rounds a float to an integer, ties to even */
#define FF_ROUNDER_BITS 0x4b400000  /* bits of (x + FF_ROUNDER) minus this: the rounded x */
/* the sanitizer is not ready when the loader chooses clones */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define FF_CLONES __attribute__((target_clones("avx2", "default")))  /* the loader chooses by processor */
#else
#define FF_CLONES
#endif

FF_SCALAR uint32_t ff_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FF_SCALAR float ff_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Bits of a finite float32 -> bits of the nearest bfloat16, ties to even. */
FF_SCALAR uint16_t ff_bfloat16(uint32_t bits)
{
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
