/* Which instruction sets can run here. __builtin_cpu_supports also asks XCR0 whether the operating system saves the
   registers; CPUID alone is no permission. */
#include "cpu.h"

const char *ff_isa_name(int isa)
{
    static const char *const names[FF_ISAS] = {"portable", "avx2", "avx512"};
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
#endif
    return isa == FF_PORTABLE;
}

int ff_isa_vector(int isa)
{
    static const int floats[FF_ISAS] = {4, 8, 16};
    return floats[isa];
}

int ff_isa_rows(int isa)
{
    static const int rows[FF_ISAS] = {4, 6, 14};
    return rows[isa];
}
