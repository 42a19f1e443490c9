/* The common declarations of all CPU kernels. Headers declare, and define static functions only: another inline function, compiled for
   AVX-512 in one file, may be the copy that the linker keeps for everybody.

   Numbers and records that Python uses too are read from these headers by _cpu.pyx: nothing is copied by hand. */
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
const char *ff_find_amx(void);  /* "" if tiles may be used, for which Linux is asked; else why not */

/* dispatch.c: instruction sets, worst first except the last. AMX has products in reduced precision only and is AVX-512 in
   all else; its emulation is for tests. */
enum { FF_PORTABLE, FF_AVX2, FF_AVX512, FF_AMX, FF_AMX_EMULATED, FF_ISAS };
const char *ff_isa_name(int isa);
int ff_isa_usable(int isa);  /* 1 when compiled in, present in the CPU and enabled by the operating system */
const char *ff_amx_missing(void);  /* why AMX cannot run here, asking the system for it the first time; "" if it can */
/* Of the float32 kernels: floats in a vector, which packing depends on; rows in the largest tile, and scratch on this. */
enum { FF_PORTABLE_VECTOR = 4, FF_AVX2_VECTOR = 8, FF_AVX512_VECTOR = 16 };
enum { FF_PORTABLE_ROWS = 4, FF_AVX2_ROWS = 6, FF_AVX512_ROWS = 14 };
int ff_isa_vector(int isa);
int ff_isa_rows(int isa);

/* threads.c: one pool per process, made on first use and again after a fork. */
typedef void (*ff_task)(void *context, int thread);
/* Call task(context, i) once for i = 0 on the caller and for at most threads - 1 more i on other threads, as they are
   free to join; return when all calls have. The task must do all the work however few threads join. */
void ff_run(ff_task task, void *context, int threads);
/* At least `bytes` of this thread's own 64-byte aligned memory, kept between calls; NULL when there is none. */
void *ff_scratch(size_t bytes);

#endif
