cdef extern from "tokens/normalize.h":
    ctypedef struct ff_buffer:
        pass
    void ff_prepare_marks()
    void ff_prepare_map(ff_rule *)
    void ff_open_buffer(ff_buffer *)
    void ff_close_buffer(ff_buffer *)
    void ff_put(ff_buffer *, const uint8_t *, int64_t)
    int ff_normalize(const ff_unigram *, const uint8_t **, int64_t *, ff_buffer *)


MAPPED, KEPT, LOWERED, REPLACED = FF_MAPPED, FF_KEPT, FF_LOWERED, FF_REPLACED
JOINED, STRIPPED, MOST_STEPS = FF_JOINED, FF_STRIPPED, 16
ff_prepare_marks()


cdef class Normalizer:
    """Hold steps (kind, old, new) of Unigram's normalizer, as in ``c/tokens/tokens.h``."""

    cdef ff_unigram u
    cdef ff_rule steps[16]
    cdef object keep_alive

    def __cinit__(self, list steps):
        if len(steps) > MOST_STEPS:
            raise ValueError(f"the normalizer has {len(steps)} steps, more than {MOST_STEPS}")
        odds = [bytearray(FF_ODDS if kind == FF_MAPPED else 0) for kind, _, _ in steps]
        self.keep_alive = (steps, odds)
        self.u.steps, self.u.step_count = self.steps, <int32_t>len(steps)
        for i, (kind, old, new) in enumerate(steps):
            if kind == FF_MAPPED and (len(old) < 4 or len(old) % 4 or not new.endswith(b"\0")):
                raise ValueError("a map of characters has no units, or its last text has no end")
            if kind in (FF_REPLACED, FF_JOINED) and not old:
                raise ValueError("a step of the normalizer has nothing to replace")
            self.steps[i].kind = kind
            self.steps[i].old, self.steps[i].old_length = <const uint8_t *>(<bytes>old), <int32_t>len(old)
            self.steps[i].made, self.steps[i].new_length = <const uint8_t *>(<bytes>new), <int32_t>len(new)
            if kind == FF_MAPPED:
                self.steps[i].new_length -= 1
                self.steps[i].odd = <uint8_t *>(<bytearray>odds[i])
                ff_prepare_map(&self.steps[i])

    def normalize(self, str text):
        """Return the normalized text, or None if a library must normalize it."""
        cdef ff_buffer two[2]
        cdef bytes letters = text.encode()
        cdef const uint8_t *at = letters
        cdef int64_t n = len(letters)
        ff_open_buffer(&two[0])
        ff_open_buffer(&two[1])
        try:
            state = ff_normalize(&self.u, &at, &n, two)
            if state == FF_FULL:
                raise MemoryError("no memory for the normalized text")
            return None if state == FF_ASKED else at[:n].decode()
        finally:
            ff_close_buffer(&two[0])
            ff_close_buffer(&two[1])


cdef class Unigram(Tokenizer):
    """Unigram by rules that ``tokens.UnigramRules`` has checked.

    normalize: all steps by a library; later: tokens as ``added``, found after normalization; each: the most ids from a
    character, here and by the library; spaced: white space ends a word; chunks: as in ``c/tokens/tokens.h``.
    """

    cdef ff_unigram u, by_library

    def __cinit__(
        self, Vocabulary words, int unknown, list added, const int32_t[::1] before, const int32_t[::1] after,
        list later, Normalizer normalizer, normalize, tuple each, bint spaced, bint chunks,
    ):
        if not words.words.scored or not 0 <= unknown < words.words.count:
            raise ValueError(f"the unknown id {unknown} has no piece with a score")
        self.begin(words, unknown, added + later, before, after, each[0])
        self.keep_alive = (words, added, later, before, after, normalizer)
        self.normalize, self.u = normalize, normalizer.u
        self.w.added_count -= <int32_t>len(later)
        self.u.later, self.u.later_count = self.added + self.w.added_count, <int32_t>len(later)
        self.u.words, self.u.chunks = spaced, chunks
        self.w.unigram = &self.u
        ff_prepare_letters(&self.w)
        self.by_library, self.asking = self.u, self.w
        self.by_library.ask, self.by_library.context = _ask, <void *>self
        self.asking.unigram, self.asking.each = &self.by_library, each[1]
