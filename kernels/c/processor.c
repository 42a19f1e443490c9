#define _GNU_SOURCE
#include "cpu.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if FF_HAS_AMX && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

int ff_has_avx2(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

int ff_has_avx512(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

int ff_has_avxvnni(void)
{
#if FF_HAS_AVXVNNI
    unsigned a, b, c, d;
    return ff_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#else
    return 0;
#endif
}

#if defined(__aarch64__) && defined(__linux__)
/* 1 if Linux reports all of these bits (hwcap.h). */
#define REPORTS(word, bits) ((getauxval(word) & (bits)) == (bits))
int ff_has_neon_dot(void) { return REPORTS(AT_HWCAP, 1ul << 20 /* ASIMDDP */); }
int ff_has_neon_mm(void) { return ff_has_neon_dot() && REPORTS(AT_HWCAP2, 1ul << 13 | 1ul << 14 /* I8MM, BF16 */); }
#elif defined(__aarch64__) && defined(__APPLE__)
static int reports(const char *name)
{
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname(name, &found, &size, NULL, 0) && found;
}
int ff_has_neon_dot(void) { return reports("hw.optional.arm.FEAT_DotProd"); }
int ff_has_neon_mm(void)
{
    return ff_has_neon_dot() && reports("hw.optional.arm.FEAT_BF16") && reports("hw.optional.arm.FEAT_I8MM");
}
#else
int ff_has_neon_dot(void) { return 0; }
int ff_has_neon_mm(void) { return 0; }
#endif

const char *ff_find_amx(void)
{
#if FF_HAS_AMX && defined(__linux__)
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & d >> 24 & d >> 25 & 1))
        return "the processor has no AMX for bfloat16 and int8";
    if (!ff_has_avx512())
        return "the processor or the operating system has no AVX-512";
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3)
        return "the operating system does not enable the registers of AMX";
    if (!__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a < 1 || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) ||
        (b & 0xffff) < 64 || b >> 16 < 8 || (c & 0xffff) < 16)
        return "the processor reports no eight tiles of 16 rows of 64 bytes";
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */))
        return "Linux refuses the permission to use AMX";
    return "";
#else
    return "this build has no AMX";
#endif
}
