/* Self-tests: what the bodies of an instruction set compute of a few numbers, against the same sums in double, once a
   process and before their first use. A hypervisor, an emulator, a compiler or a core may be wrong without any error. */
#ifndef FASTFLOW_SELFTEST_H
#define FASTFLOW_SELFTEST_H

#include "parts.h"

/* The self-tests, as bits, in which `isa` is wrong: one answer a process. 0 if this machine lacks it, or memory. AMX, which
   is AVX-512 but for products, has no other self-tests than those of products and attention. */
uint32_t ff_wrong(int isa);
uint32_t ff_wrong_so_far(int isa);  /* the same without a run: 0 if there was none yet */
/* The same of a new run, whose results in `broken` are changed; with `keep` it is the answer of the process from now on. */
uint32_t ff_try(int isa, int broken, int keep);
const char *ff_selftest_name(int test);  /* what is tried, in words */

#endif
