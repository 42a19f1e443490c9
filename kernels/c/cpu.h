/* Declarations for all CPU kernels. Headers define static functions only: of other inline functions the linker keeps
   one copy, possibly one compiled for AVX-512. _cpu.pyx and the .pxi files read shared numbers and records from
   these headers. */
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

/* processor.c: whether this build, the processor and the operating system have the instructions. */
int ff_has_avx2(void);
int ff_has_avx512(void);
int ff_has_avxvnni(void);
const char *ff_find_amx(void);  /* "" if tiles may be used, after asking Linux; else why not */

/* dispatch.c: instruction sets, worst first except the last. AMX computes reduced-precision products and uses
   AVX-512 for the rest; its emulation is for tests. */
enum { FF_PORTABLE, FF_AVX2, FF_AVX512, FF_AMX, FF_AMX_EMULATED, FF_ISAS };
const char *ff_isa_name(int isa);
int ff_isa_present(int isa);  /* 1 if compiled in, in the processor, and enabled by the operating system */
int ff_isa_usable(int isa);  /* selftest/usable.c: 1 if present and past its self-tests, which run the first time */
const char *ff_amx_missing(void);  /* why AMX cannot run here, "" if it can; asks the system the first time */
/* Of the float32 kernels: floats in a vector, which sets the weights' layout, and rows in the largest tile, which
   sets scratch memory. A tile of R rows keeps 2 R vectors of sums in registers: 8 of 16 in portable C, 12 of 16 with
   AVX2, 28 of 32 with AVX-512. */
enum { FF_PORTABLE_VECTOR = 4, FF_AVX2_VECTOR = 8, FF_AVX512_VECTOR = 16 };
enum { FF_PORTABLE_ROWS = 4, FF_AVX2_ROWS = 6, FF_AVX512_ROWS = 14 };
int ff_isa_vector(int isa);
int ff_isa_rows(int isa);

/* threads.c: one pool per process, made on first use and after a fork. */
typedef void (*ff_task)(void *context, int thread);
/* Call task(context, 0) in this thread and task(context, i) in each of at most threads - 1 free workers; return
   after all calls. The task must do all the work however few threads join. */
void ff_run(ff_task task, void *context, int threads);
/* This thread's 64-byte aligned memory of at least `bytes`, kept between calls; NULL if memory is short. */
void *ff_scratch(size_t bytes);

#endif
