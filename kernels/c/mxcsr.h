/* How a thread of x86-64 rounds and treats subnormal numbers. The caller's setting is restored when a kernel returns. */
#ifndef FASTFLOW_MXCSR_H
#define FASTFLOW_MXCSR_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define FF_FLUSH 0x9fc0u    /* round to nearest, no traps, subnormals flushed and read as zero: while kernels run */
#define FF_DEFAULT 0x1f80u  /* round to nearest, no traps, subnormals kept: while weights are packed */

/* Set this thread's MXCSR and return the old one; on other processors do nothing. Every thread of a call must set it, or
   the bits of a row would depend on the thread that computed it. */
static inline unsigned ff_set_mxcsr(unsigned wanted)
{
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(wanted);
    return before;
#else
    return wanted;
#endif
}

#endif
