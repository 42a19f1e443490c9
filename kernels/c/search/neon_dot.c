#if defined(__aarch64__)
#include "search.h"
#include "vector_neon.h"
FF_TARGET("arch=armv8.2-a+dotprod")

#define NAME ff_dots_dot
#define WIDE 16  /* bytes per step */
#define ZERO SET1I(0)
#define WIDEN(p) vld1q_s8(p)
#define PAIRS(a, b) ((ivec){{vdotq_s32(vdupq_n_s32(0), a, b), vdupq_n_s32(0)}})
#define TOTAL(v) vaddvq_s32((v).q[0])
#include "dots.inc"

FF_TARGET_END
#endif
