/* A thread's rounding and subnormals: MXCSR of x86-64, FPCR of arm64, restored when a kernel returns. */
#ifndef FASTFLOW_MXCSR_H
#define FASTFLOW_MXCSR_H

#include <stdint.h>

/* Round to nearest, no traps. FF_FLUSH, for kernels: subnormals flushed. FF_DEFAULT, for packing: kept. */
#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned ff_mxcsr;
#define FF_FLUSH 0x9fc0u
#define FF_DEFAULT 0x1f80u
#else
typedef uint64_t ff_mxcsr;
#define FF_FLUSH ((ff_mxcsr)1 << 24)
#define FF_DEFAULT ((ff_mxcsr)0)
#endif

/* Set this thread's register; return the old one. Every thread of a call must set it: a row's bits depend on it. */
static inline ff_mxcsr ff_set_mxcsr(ff_mxcsr wanted)
{
#if defined(__x86_64__)
    const ff_mxcsr before = _mm_getcsr();
    _mm_setcsr(wanted);
    return before;
#elif defined(__aarch64__)
    ff_mxcsr before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(wanted) : "memory");
    return before;
#else
    return wanted;
#endif
}

#endif
