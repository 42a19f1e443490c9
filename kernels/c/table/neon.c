#if defined(__aarch64__)
#include "table.h"
#include "vector_neon.h"

OPERATION vec widen_bytes(const char *p)
{
    const int16x8_t wide = vmovl_s8(vld1_s8((const int8_t *)p));
    return TO_FLOAT((ivec){{vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)}});
}

#define BODY ff_table_neon
#define WIDEN_BYTES(p) widen_bytes(p)
#include "body.inc"

#endif
