/* Self-tests against sums in double, before an instruction set is first used: a hypervisor, emulator, compiler or
   processor may compute wrong results. */
#ifndef FASTFLOW_SELFTEST_H
#define FASTFLOW_SELFTEST_H

#include "parts.h"

/* Bits of the self-tests that `isa` fails, computed once per process. AMX tests only products and attention. */
uint32_t ff_wrong(int isa);
uint32_t ff_wrong_so_far(int isa);  /* the same, but 0 if they have not run */
/* Run them again, with changed results for self-test `broken`; `keep`: use the answer in this process. */
uint32_t ff_try(int isa, int broken, int keep);
const char *ff_selftest_name(int test);

#endif
