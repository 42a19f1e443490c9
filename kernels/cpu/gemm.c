/* Which product computes a format on an instruction set. */
#include "encoder.h"

ff_product ff_product_of(int isa, int format)
{
    static const ff_product products[FF_ISAS][FF_FORMATS] = {
        {ff_float_portable, NULL, ff_wide_portable, NULL, ff_int8_portable},
#if defined(__x86_64__)
        {ff_float_avx2, NULL, ff_wide_avx2, NULL, ff_int8_avx2},
        {ff_float_avx512, ff_bf16_avx512, ff_wide_avx512, ff_int8_avx512, NULL},
#endif
    };
#if defined(__x86_64__)
    if (isa == FF_AVX512 && format == FF_BF16 && !__builtin_cpu_supports("avx512bf16"))
        return NULL;
    if (isa == FF_AVX512 && format == FF_INT8 && !__builtin_cpu_supports("avx512vnni"))
        return NULL;
#endif
    return products[isa][format];
}
