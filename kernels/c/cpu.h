/* Declarations for all CPU kernels. Headers define static functions only: of other inline functions the linker may
   keep the copy compiled for AVX-512. */
#ifndef FASTFLOW_CPU_H
#define FASTFLOW_CPU_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__has_include)  /* instructions that not every compiler has */
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)  /* GCC's and clang's */
#define FF_HAS_AMX 1
#endif
#if __has_include(<avxvnniintrin.h>)
#define FF_HAS_AVXVNNI 1
#endif
#endif

/* processor.c: whether build, processor and system have the instructions. */
int ff_has_avx2(void);
int ff_has_avx512(void);
int ff_has_avxvnni(void);
const char *ff_find_amx(void);  /* "" if tiles may be used, after asking Linux; else why not */

/* dispatch.c: instruction sets, worst first. AMX has reduced-precision products and else uses AVX-512; its emulation
   is for tests. */
enum { FF_PORTABLE, FF_AVX2, FF_AVX512, FF_AMX, FF_AMX_EMULATED, FF_ISAS };
const char *ff_isa_name(int isa);
int ff_isa_present(int isa);  /* 1 if compiled in, present and enabled */
int ff_isa_usable(int isa);  /* selftest/usable.c: and past its self-tests, which run the first time */
const char *ff_amx_missing(void);  /* why AMX cannot run here, or "" */
/* Floats in a vector and rows in the largest float32 tile. A tile of R rows keeps 2 R vectors in registers: 8 of 16
   in portable C, 12 of 16 with AVX2, 28 of 32 with AVX-512. */
enum { FF_PORTABLE_VECTOR = 4, FF_AVX2_VECTOR = 8, FF_AVX512_VECTOR = 16 };
enum { FF_PORTABLE_ROWS = 4, FF_AVX2_ROWS = 6, FF_AVX512_ROWS = 14 };
int ff_isa_vector(int isa);
int ff_isa_rows(int isa);

/* threads.c: one pool per process. */
typedef void (*ff_task)(void *context, int thread);
/* Call task(context, 0) here and task(context, i) in at most threads - 1 free workers, then return. The task does
   all work however few join. */
void ff_run(ff_task task, void *context, int threads);
/* This thread's 64-byte aligned memory, kept between calls; NULL if memory is short. */
void *ff_scratch(size_t bytes);

#endif
