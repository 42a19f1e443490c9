#include <stdatomic.h>
#include <string.h>

#include "gemm/gemm.h"

const char *ff_isa_name(int isa)
{
    static const char *const names[FF_ISAS] = {
        [FF_PORTABLE] = "portable", [FF_NEON] = "neon", [FF_NEON_MM] = "neon-mm", [FF_AVX2] = "avx2",
        [FF_AVX512] = "avx512", [FF_AMX] = "amx", [FF_AMX_EMULATED] = "amx-emulated",
    };
    return names[isa];
}

int ff_isa_present(int isa)
{
    switch (isa) {
    case FF_PORTABLE: return 1;
#if defined(__aarch64__)
    case FF_NEON: return 1;
    case FF_NEON_MM: return ff_has_neon_mm();
#endif
    case FF_AVX2: return ff_has_avx2();
    case FF_AVX512: return ff_has_avx512();
#if FF_HAS_AMX
    case FF_AMX: return !*ff_amx_missing();
    case FF_AMX_EMULATED: return ff_has_avx512();
#endif
    default: return 0;
    }
}

#if FF_HAS_AMX && defined(__linux__)
/* Return 1 if AMX multiplies two tiles correctly: some hypervisors report AMX without having it. */
static int amx_is_right(void)
{
    for (int whole = 0; whole < 2; whole++) {
        uint16_t a[16][32], b[16][32];
        uint32_t found[16][16], want[16][16];
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 32; i++) {  /* bits of bfloat16 numbers of both signs, from 0.5 to 4 */
                a[r][i] = (uint16_t)(0x3f00 + ((37 * r + 11 * i) & 0xff) + (((r ^ i) & 1) << 15));
                b[r][i] = (uint16_t)(0x3f00 + ((53 * r + 29 * i) & 0xff) + (((r ^ (i >> 1)) & 1) << 15));
            }
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 16; i++)
                found[r][i] = want[r][i] = whole ? (uint32_t)(r - i) : 0x3f800000u + (uint32_t)(i << 16);
        ff_try_tile(FF_AMX, whole, a, b, found);
        ff_try_tile(FF_AMX_EMULATED, whole, a, b, want);
        if (memcmp(found, want, sizeof want))
            return 0;
    }
    return 1;
}
#endif

const char *ff_amx_missing(void)
{
    static _Atomic(const char *) known;  /* kept, because the answer must not change within a process */
    const char *none = NULL, *answer = atomic_load(&known);
    if (answer)
        return answer;
    answer = ff_find_amx();
#if FF_HAS_AMX && defined(__linux__)
    if (!*answer && !amx_is_right())
        answer = "AMX gave a wrong answer in its self-test";
#endif
    return atomic_compare_exchange_strong(&known, &none, answer) ? answer : none;
}

int ff_isa_vector(int isa)
{
    static const int floats[FF_AVX512] = {FF_PORTABLE_VECTOR, FF_NEON_VECTOR, FF_NEON_VECTOR, FF_AVX2_VECTOR};
    return isa < FF_AVX512 ? floats[isa] : FF_AVX512_VECTOR;
}

int ff_isa_rows(int isa)
{
    static const int rows[FF_AVX512] = {FF_PORTABLE_ROWS, FF_NEON_ROWS, FF_NEON_ROWS, FF_AVX2_ROWS};
    return isa < FF_AVX512 ? rows[isa] : FF_AVX512_ROWS;
}
