cdef extern from "selftest/selftest.h":
    enum: FF_SELFTESTS
    uint32_t ff_wrong_so_far(int isa)
    uint32_t ff_try(int isa, int broken, int keep)
    const char *ff_selftest_name(int test)


def usable(int isa):
    """Return whether ``isa`` can run here and passes its self-tests, which run the first time."""
    return 0 <= isa < FF_ISAS and bool(ff_isa_usable(isa))


def wrong(int isa):
    """Return the names of the self-tests that ``isa`` has failed so far; kernels that failed are not used."""
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_wrong_so_far(isa)
    return [ff_selftest_name(i).decode() for i in range(FF_SELFTESTS) if found >> i & 1]


def try_again(int isa, int broken=-1, bint keep=False):
    """Run the self-tests of ``isa``, ``broken`` with a falsified result; return the numbers of the failed ones.

    For tests. ``keep``: this process uses the answer from now on.
    """
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_try(isa, broken, keep)
    return [i for i in range(FF_SELFTESTS) if found >> i & 1]
