#include "encoder/encoder.h"
#include "selftest.h"

int ff_isa_usable(int isa)
{
    static const uint32_t all = 1u << FF_TRY_FLOW | 1u << FF_TRY_TABLE | 1u << FF_TRY_SCANS | 1u << FF_TRY_ROWS |
                                1u << (FF_TRY_PRODUCT + FF_FLOAT) | 1u << (FF_TRY_ATTENTION + FF_FLOAT);
    return ff_isa_present(isa) && !(ff_wrong(isa) & all) && (isa < FF_AMX || ff_isa_usable(FF_AVX512));
}

ff_product ff_product_of(int isa, int format)
{
    return ff_wrong(isa) >> (FF_TRY_PRODUCT + format) & 1 ? NULL : ff_find_product(isa, format);
}

const ff_attention *ff_attention_of(int isa, int format)
{
    const uint32_t wrong = ff_wrong(isa) >> FF_TRY_ATTENTION;
    if (wrong >> format & 1 || (format == FF_INT8 && wrong >> FF_BF16 & 1))  /* int8 uses bfloat16 for short texts */
        return NULL;
    return ff_find_attention(isa, format);
}
