cdef extern from "tokens/normalize.h":
    ctypedef struct ff_buffer:
        uint8_t *at
        int64_t length
        int failed
    void ff_prepare_marks()
    int ff_prepare_map(ff_rule *)
    void ff_open_buffer(ff_buffer *)
    void ff_close_buffer(ff_buffer *)
    void ff_put(ff_buffer *, const uint8_t *, int64_t)
    enum: FF_JOINS, FF_BREAKS, FF_TAKES, FF_CHANGES, FF_ACCENT
    int ff_mark(uint32_t)
    int ff_normalize(const ff_rule *, const ff_buffer *, ff_buffer *, int)


MAPPED, COMPOSED, DECOMPOSED, LOWERED = FF_MAPPED, FF_COMPOSED, FF_DECOMPOSED, FF_LOWERED
UNMARKED, REPLACED, JOINED, STRIPPED = FF_UNMARKED, FF_REPLACED, FF_JOINED, FF_STRIPPED
SPACES_BEFORE, SPACES_AFTER = FF_SPACES_BEFORE, FF_SPACES_AFTER
NOWHERE, AT_START, EVERYWHERE = FF_NOWHERE, FF_AT_START, FF_EVERYWHERE
JOINS, BREAKS, TAKES, CHANGES, ACCENT = FF_JOINS, FF_BREAKS, FF_TAKES, FF_CHANGES, FF_ACCENT
ff_prepare_marks()


def mark(int c):
    """Return the kinds of code point c in a grapheme, a sum of JOINS to ACCENT, as ``c/tokens/normalize.h``."""
    if not 0 <= c < 0x110000:
        raise ValueError(f"{c} is no code point")
    return ff_mark(c)


cdef class Pieces:
    """Read the JSON array of pairs of piece and score at byte ``start`` of ``json``; ``end``: the byte after it.

    Raises ValueError unless it is strict JSON with short pieces and numbers. Of a repeated piece the last id counts.
    """

    cdef ff_pieces pieces
    cdef readonly int64_t end

    def __cinit__(self, const unsigned char[::1] json, int64_t start=0):
        if not 0 <= start < json.shape[0]:
            raise ValueError(f"pieces cannot begin at byte {start} of {json.shape[0]}")
        cdef int failed
        cdef const uint8_t *first = &json[start]
        cdef int64_t length = json.shape[0] - start
        with nogil:
            failed = ff_read_pieces(&self.pieces, first, length, &self.end)
        if failed == FF_NO_MEMORY:
            raise MemoryError("no memory for the pieces")
        if failed != FF_READ:
            raise ValueError("the vocabulary is no JSON array of pieces and scores, or has odd ones")
        self.end += start

    def __dealloc__(self):
        ff_free_pieces(&self.pieces)

    def __len__(self):
        return self.pieces.count

    @property
    def largest(self):
        """The largest id of all pieces."""
        return self.pieces.count - 1

    @property
    def lengths(self):
        """The number of different pieces of 0, 1, 2, ... characters."""
        return [self.pieces.lengths[i] for i in range(FF_LONGEST_PIECE + 1)]

    def score(self, int64_t number):
        """Return the score of a piece."""
        if not 0 <= number < self.pieces.count:
            raise ValueError(f"no piece has the id {number}")
        return self.pieces.scores[number]

    def get(self, str piece):
        """Return the id of a piece, or None."""
        cdef bytes letters = piece.encode()
        cdef int32_t found = ff_find_piece(&self.pieces, letters, len(letters))
        return None if found < 0 else found


cdef class Unigram(Tokenizer):
    """Unigram by rules that ``tokens.UnigramRules`` has checked.

    steps: (kind, from, to, left, right) as in ``c/tokens/tokens.h``; later: tokens as ``added``, found after
    normalization; each: the most ids from one character of a text.
    """

    cdef ff_unigram u
    cdef ff_rule *steps
    cdef int32_t of_bytes[256]

    def __cinit__(
        self, Pieces pieces, list steps, int unknown, list added, list later, const int32_t[::1] before,
        const int32_t[::1] after, bint by_bytes, bint words, bint marked, bint splits, int prefixed, bint chunks,
        int each,
    ):
        if not 0 <= unknown < pieces.pieces.count:
            raise ValueError(f"the unknown id {unknown} has no piece")
        self.begin(added + later, before, after)
        self.keep_alive = (pieces, steps, added, later, before, after)
        self.steps = <ff_rule *>calloc(max(len(steps), 1), sizeof(ff_rule))
        if self.steps == NULL:
            raise MemoryError("no memory for the normalizer")
        self.u.steps, self.u.step_count = self.steps, <int32_t>len(steps)
        for i, (kind, old, new, left, right) in enumerate(steps):
            if kind == FF_MAPPED and (len(old) < 4 or len(old) % 4 or not new.endswith(b"\0")):
                raise ValueError("a map of characters has no units, or its last text has no end")
            if kind == FF_REPLACED and not old:
                raise ValueError("a step of the normalizer has nothing to replace")
            self.steps[i].kind, self.steps[i].left, self.steps[i].right = kind, left, right
            self.steps[i].old, self.steps[i].old_length = <const uint8_t *>(<bytes>old), <int32_t>len(old)
            self.steps[i].made, self.steps[i].new_length = <const uint8_t *>(<bytes>new), <int32_t>len(new)
            if kind == FF_MAPPED:
                self.steps[i].new_length -= 1
                if not ff_prepare_map(&self.steps[i]):
                    raise MemoryError("no memory for the map of characters")
        self.u.pieces = &pieces.pieces
        self.w.added_count -= <int32_t>len(later)
        self.u.later, self.u.later_count = self.added + self.w.added_count, <int32_t>len(later)
        self.u.unknown, self.u.unknown_score = unknown, pieces.pieces.least - 10
        for i in range(256 if by_bytes else 0):
            piece = b"<0x%02X>" % i
            self.of_bytes[i] = ff_find_piece(&pieces.pieces, piece, len(piece))
        self.u.bytes = self.of_bytes if by_bytes else NULL
        self.u.words, self.u.marked, self.u.splits = words, marked, splits
        self.u.before, self.u.chunks = prefixed, chunks
        for letter in b"\t\n\x0b\x0c\r\xc2\xe1\xe3" * words + b" \xe2" * (words or marked):  # of white space and \u2581
            self.u.breaks[letter] = 1
        self.w.unigram, self.w.each = &self.u, each
        ff_prepare_letters(&self.w)

    def __dealloc__(self):
        for i in range(self.u.step_count):
            free(self.steps[i].odd)
        free(self.steps)

    def normalize(self, str text):
        """Return the normalized text, or None if the library must normalize it."""
        cdef ff_buffer one, other
        cdef ff_buffer *given = &one
        cdef ff_buffer *made = &other
        cdef bytes letters = text.encode()
        cdef int i, state = 0
        ff_open_buffer(given)
        ff_open_buffer(made)
        try:
            ff_put(given, letters, len(letters))
            for i in range(self.u.step_count):
                made.length = 0
                if ff_normalize(&self.steps[i], given, made, 3) == FF_ASKED:
                    return None
                given, made = made, given
            if one.failed or other.failed:
                raise MemoryError("no memory for the normalized text")
            return given.at[:given.length].decode()
        finally:
            ff_close_buffer(&one)
            ff_close_buffer(&other)
