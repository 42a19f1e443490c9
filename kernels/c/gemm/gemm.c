#include "gemm.h"

ff_product ff_find_product(int isa, int format)
{
    static const ff_product products[FF_ISAS][FF_FORMATS] = {
        [FF_PORTABLE] = {ff_float_portable, [FF_BF16_WIDE] = ff_wide_portable, [FF_INT8_SIGNED] = ff_int8_portable},
#if defined(__x86_64__)
        [FF_AVX2] = {ff_float_avx2, [FF_BF16_WIDE] = ff_wide_avx2, [FF_INT8_SIGNED] = ff_int8_avx2,
#if FF_HAS_AVXVNNI
                     [FF_INT8] = ff_int8_avxvnni,
#endif
        },
        [FF_AVX512] = {ff_float_avx512, ff_bf16_avx512, ff_wide_avx512, ff_int8_avx512},
#if FF_HAS_AMX
        [FF_AMX] = {ff_float_avx512, ff_bf16_amx, [FF_INT8_TILES] = ff_int8_amx},
        [FF_AMX_EMULATED] = {ff_float_avx512, ff_bf16_amx_emulated, [FF_INT8_TILES] = ff_int8_amx_emulated},
#endif
#elif defined(__aarch64__)
        [FF_NEON] = {ff_float_neon, [FF_BF16_WIDE] = ff_wide_neon, [FF_INT8_SIGNED] = ff_int8_neon},
        [FF_NEON_MM] = {ff_float_neon, ff_bf16_mm, ff_wide_neon, [FF_INT8_SIGNED] = ff_int8_mm},
#endif
    };
#if defined(__aarch64__)
    if (isa == FF_NEON && format == FF_INT8_SIGNED && ff_has_neon_dot())
        return ff_int8_dot;
#endif
#if defined(__x86_64__)
    if (isa == FF_AVX2 && format == FF_INT8 && !ff_has_avxvnni())
        return NULL;
    if (isa == FF_AVX512 && format == FF_BF16 && !__builtin_cpu_supports("avx512bf16"))
        return NULL;
    if (isa == FF_AVX512 && format == FF_INT8 && !__builtin_cpu_supports("avx512vnni"))
        return NULL;
#endif
    return products[isa][format];
}

int ff_steps_together(int isa, int format)
{
    return isa == FF_NEON_MM && (format == FF_BF16 || format == FF_INT8_SIGNED) ? 2 : 1;
}

int ff_slow_dots(int isa)
{
#if defined(__x86_64__)
    return isa == FF_AVX512 && __builtin_cpu_is("intel");
#else
    (void)isa;
    return 0;
#endif
}

void ff_switch_tiles(int isa, int on)
{
#if FF_HAS_AMX
    if (isa == FF_AMX)
        ff_switch_tiles_amx(on);
    if (isa == FF_AMX_EMULATED)
        ff_switch_tiles_amx_emulated(on);
#else
    (void)isa, (void)on;
#endif
}

void ff_try_tile(int isa, int whole, const void *a, const void *b, void *c)
{
#if FF_HAS_AMX
    (isa == FF_AMX ? ff_try_tile_amx : ff_try_tile_amx_emulated)(whole, a, b, c);
#else
    (void)isa, (void)whole, (void)a, (void)b, (void)c;
#endif
}
