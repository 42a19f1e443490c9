/* Self-tests against sums in double, before an instruction set is first used: a hypervisor, emulator, compiler or
   processor may be wrong. */
#ifndef FASTFLOW_SELFTEST_H
#define FASTFLOW_SELFTEST_H

#include "parts.h"

/* Bits of the self-tests that `isa` fails, computed once per process. AMX tests only products and attention. */
uint32_t ff_wrong(int isa);
uint32_t ff_wrong_so_far(int isa);  /* as ff_wrong, but 0 if they have not run */
/* Run the self-tests again, `broken` with a falsified result; `keep`: use the answer in this process. */
uint32_t ff_try(int isa, int broken, int keep);
const char *ff_selftest_name(int test);

#endif
