/* Declarations of all CPU kernels. Functions in headers are static: the linker might keep only the AVX-512 copy of an
   extern inline one. */
#ifndef FASTFLOW_CPU_H
#define FASTFLOW_CPU_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)
#define FF_HAS_AMX 1
#endif
#if __has_include(<avxvnniintrin.h>)
#define FF_HAS_AVXVNNI 1
#endif
#endif

/* processor.c: 1 if compiler, processor and operating system support the instructions. */
int ff_has_avx2(void);
int ff_has_avx512(void);
int ff_has_avxvnni(void);
int ff_has_neon_dot(void);  /* SDOT */
int ff_has_neon_mm(void);  /* BFMMLA and SMMLA */
const char *ff_find_amx(void);  /* "" if AMX can run; else why not */

/* dispatch.c: instruction sets, slowest first. FF_AMX uses AVX-512 except for bfloat16 and int8 products.
   FF_AMX_EMULATED is for tests. FF_NEON_MM is FF_NEON with other bfloat16 and int8 products. */
enum { FF_PORTABLE, FF_NEON, FF_NEON_MM, FF_AVX2, FF_AVX512, FF_AMX, FF_AMX_EMULATED, FF_ISAS };
const char *ff_isa_name(int isa);
int ff_isa_present(int isa);  /* 1: this build and this machine support `isa` */
int ff_isa_usable(int isa);  /* 1: present, and its self-tests passed */
const char *ff_amx_missing(void);  /* "" if AMX can run and computes a tile correctly; else why not */
/* VECTOR: floats in a vector. ROWS: rows of the largest tile, which keeps 2 ROWS vectors of sums in registers. */
enum { FF_PORTABLE_VECTOR = 4, FF_NEON_VECTOR = 8, FF_AVX2_VECTOR = 8, FF_AVX512_VECTOR = 16 };
enum { FF_PORTABLE_ROWS = 4, FF_NEON_ROWS = 6, FF_AVX2_ROWS = 6, FF_AVX512_ROWS = 14 };
int ff_isa_vector(int isa);
int ff_isa_rows(int isa);

/* threads.c: one thread pool per process. */
typedef void (*ff_task)(void *context, int thread);
/* Call task(context, 0) in this thread and task(context, i) in up to threads - 1 workers, and wait for them. The task
   must do all work even if no worker calls it. */
void ff_run(ff_task task, void *context, int threads);
/* Return this thread's scratch memory, 64-byte aligned, kept between calls. NULL: out of memory. */
void *ff_scratch(size_t bytes);

#endif
