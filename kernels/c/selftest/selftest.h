/* Self-tests against sums in double before first use: a hypervisor, emulator, compiler or core may silently be
   wrong. */
#ifndef FASTFLOW_SELFTEST_H
#define FASTFLOW_SELFTEST_H

#include "parts.h"

/* Bits of the self-tests that `isa` fails, one answer a process; 0 if it is absent. AMX tests only products and
   attention. */
uint32_t ff_wrong(int isa);
uint32_t ff_wrong_so_far(int isa);  /* the same without a run: 0 if there was none yet */
/* The same of a new run, with the results of `broken` changed; `keep` makes it the process's answer. */
uint32_t ff_try(int isa, int broken, int keep);
const char *ff_selftest_name(int test);  /* the self-test in words */

#endif
