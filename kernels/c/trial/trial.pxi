cdef extern from "trial/trial.h":
    enum: FF_TRIALS
    uint32_t ff_wrong_so_far(int isa)
    uint32_t ff_try(int isa, int broken, int keep)
    const char *ff_trial_name(int trial)


def usable(int isa):
    """Whether instruction set ``isa`` can run here and computes right numbers in its trials, which run the first time."""
    return 0 <= isa < FF_ISAS and bool(ff_isa_usable(isa))


def wrong(int isa):
    """What instruction set ``isa`` computed wrongly in its trials so far, in words: it is not used for that."""
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_wrong_so_far(isa)
    return [ff_trial_name(i).decode() for i in range(FF_TRIALS) if found >> i & 1]


def try_again(int isa, int broken=-1, bint keep=False):
    """The numbers of the trials that instruction set ``isa`` fails if its results in trial ``broken`` are changed.

    For tests: with ``keep`` that is the answer of the process from now on.
    """
    if not 0 <= isa < FF_ISAS:
        raise ValueError(f"there is no instruction set {isa}")
    cdef uint32_t found = ff_try(isa, broken, keep)
    return [i for i in range(FF_TRIALS) if found >> i & 1]
