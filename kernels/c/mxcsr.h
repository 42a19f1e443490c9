/* How a thread of x86-64 rounds and treats subnormal numbers. The caller's setting is restored when a kernel returns. */
#ifndef FASTFLOW_MXCSR_H
#define FASTFLOW_MXCSR_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define FF_FLUSH 0x9fc0u    /* round to nearest, no traps, subnormals flushed and read as zero: while kernels run */
#define FF_DEFAULT 0x1f80u  /* round to nearest, no traps, subnormals kept: while weights are packed */

/* Set this thread's MXCSR and return what it was; nothing on other processors. Every thread of a call must set it, or bits
   would depend on who computed a row. */
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
