/* Floating-point mode of a thread: rounding and subnormals (MXCSR on x86-64, FPCR on arm64). Kernels restore it. */
#ifndef FASTFLOW_MXCSR_H
#define FASTFLOW_MXCSR_H

#include <stdint.h>

/* Both modes round to nearest without traps. FF_FLUSH reads and writes subnormals as 0 (kernels); FF_DEFAULT keeps them
   (packing weights). */
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

/* Set the mode of this thread; return the old one. Threads of a call must use one mode, or bits would differ. */
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
