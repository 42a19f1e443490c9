cdef extern from "selftest/selftest.h":
    enum: FF_SELFTESTS
    uint32_t ff_wrong_so_far(int isa)
    uint32_t ff_try(int isa, int broken, int keep)
    const char *ff_selftest_name(int test)


def usable(int isa):
    """Return whether ``isa`` can run here and passes its self-tests, which run the first time."""
    return 0 <= isa < FF_ISAS and bool(ff_isa_usable(isa))


def wrong(int isa):
    """Return the self-tests that ``isa`` has failed so far, in words; it is not used for them."""
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_wrong_so_far(isa)
    return [ff_selftest_name(i).decode() for i in range(FF_SELFTESTS) if found >> i & 1]


def try_again(int isa, int broken=-1, bint keep=False):
    """Return the numbers of the self-tests that ``isa`` fails, with the results of self-test ``broken`` changed.

    For tests; ``keep`` makes it the process's answer.
    """
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_try(isa, broken, keep)
    return [i for i in range(FF_SELFTESTS) if found >> i & 1]
