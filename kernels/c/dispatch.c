/* Which instruction sets can run here. __builtin_cpu_supports also asks XCR0 whether the operating system saves the
   registers; CPUID alone is no permission. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>

#include "gemm/gemm.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if FF_HAS_AMX && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

const char *ff_isa_name(int isa)
{
    static const char *const names[FF_ISAS] = {
        [FF_PORTABLE] = "portable", [FF_AVX2] = "avx2", [FF_AVX512] = "avx512", [FF_AMX] = "amx",
        [FF_AMX_EMULATED] = "amx-emulated",
    };
    return names[isa];
}

int ff_isa_usable(int isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == FF_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == FF_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if FF_HAS_AMX
    if (isa == FF_AMX)
        return !*ff_amx_missing();
    if (isa == FF_AMX_EMULATED)
        return ff_isa_usable(FF_AVX512);
#endif
#endif
    return isa == FF_PORTABLE;
}

int ff_avxvnni_usable(void)
{
#if FF_HAS_AVXVNNI
    unsigned a, b, c, d;
    return ff_isa_usable(FF_AVX2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#else
    return 0;
#endif
}

#if FF_HAS_AMX && defined(__linux__)
/* One tile of each kind against the emulation: some hypervisors show AMX and do not have it. */
static int amx_is_right(void)
{
    for (int whole = 0; whole < 2; whole++) {
        uint16_t a[16][32], b[16][32];
        uint32_t found[16][16], want[16][16];
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 32; i++) {  /* as bfloat16: of both signs and of sizes from 0.5 to 4 */
                a[r][i] = (uint16_t)(0x3f00 + ((37 * r + 11 * i) & 0xff) + (((r ^ i) & 1) << 15));
                b[r][i] = (uint16_t)(0x3f00 + ((53 * r + 29 * i) & 0xff) + (((r ^ (i >> 1)) & 1) << 15));
            }
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 16; i++)
                found[r][i] = want[r][i] = whole ? (uint32_t)(r - i) : 0x3f800000u + (uint32_t)(i << 16);
        ff_trial(FF_AMX, whole, a, b, found);
        ff_trial(FF_AMX_EMULATED, whole, a, b, want);
        if (memcmp(found, want, sizeof want))
            return 0;
    }
    return 1;
}

static const char *ask_for_amx(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & d >> 24 & d >> 25 & 1))
        return "the processor has no AMX for bfloat16 and int8";
    if (!ff_isa_usable(FF_AVX512))
        return "the processor or the operating system has no AVX-512";
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3)
        return "the operating system does not enable the registers of AMX";
    if (!__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a < 1 || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) ||
        (b & 0xffff) < 64 || b >> 16 < 8 || (c & 0xffff) < 16)
        return "the processor reports no eight tiles of 16 rows of 64 bytes";
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */))
        return "Linux refuses the permission to use AMX";
    return amx_is_right() ? "" : "AMX gave a wrong answer in its trial";
}
#endif

const char *ff_amx_missing(void)
{
#if FF_HAS_AMX && defined(__linux__)
    static _Atomic(const char *) known;  /* one answer a process: results must not change with it */
    const char *none = NULL, *said = atomic_load(&known);
    if (said)
        return said;
    said = ask_for_amx();
    return atomic_compare_exchange_strong(&known, &none, said) ? said : none;
#else
    return "this build has no AMX";
#endif
}

int ff_isa_vector(int isa)
{
    return isa == FF_PORTABLE ? FF_PORTABLE_VECTOR : isa == FF_AVX2 ? FF_AVX2_VECTOR : FF_AVX512_VECTOR;
}

int ff_isa_rows(int isa)
{
    return isa == FF_PORTABLE ? FF_PORTABLE_ROWS : isa == FF_AVX2 ? FF_AVX2_ROWS : FF_AVX512_ROWS;
}
