cdef extern from "tokens/tokens.h":
    enum: FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
    enum: FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_MARK, FF_SPLITS, FF_FENCE, FF_WORD
    enum: FF_LONGEST, FF_EACH
    enum: FF_WHOLE, FF_CUT, FF_HALF, FF_ASKED, FF_FULL
    enum: FF_MAPPED, FF_COMPOSED, FF_DECOMPOSED, FF_LOWERED, FF_UNMARKED, FF_REPLACED, FF_JOINED, FF_STRIPPED
    enum: FF_NOWHERE, FF_AT_START, FF_EVERYWHERE
    enum: FF_SPACES_BEFORE, FF_SPACES_AFTER, FF_LONGEST_PIECE
    enum: FF_READ, FF_NO_MEMORY
    enum: FF_FIRST_PIECE, FF_LATER_PIECE
    enum: FF_SLACK
    ctypedef struct ff_vocabulary:
        int64_t count
        int32_t largest
    ctypedef struct ff_pieces:
        int64_t count
        const double *scores
        double least
        int32_t lengths[256]
    ctypedef struct ff_added:
        const uint8_t *letters
        int32_t length, id, takes
    ctypedef struct ff_rule:
        int32_t kind, old_length, new_length, left, right
        const uint8_t *old
        const uint8_t *made "new"
        uint8_t *odd
    ctypedef struct ff_unigram:
        const ff_pieces *pieces
        const ff_rule *steps
        const ff_added *later
        const int32_t *bytes
        double unknown_score
        int32_t step_count, later_count, unknown, words, marked, splits, before, chunks
        uint8_t breaks[256]
    ctypedef struct ff_tokenizer:
        const ff_unigram *unigram
        const ff_vocabulary *words
        const ff_vocabulary *whole
        const ff_added *added
        const int32_t *before
        const int32_t *after
        int32_t added_count, before_count, after_count, each, steps, longest, unknown
    ctypedef struct ff_text:
        const void *letters
        int64_t length
        int32_t width, ready
    int ff_read_pieces(ff_pieces *, const uint8_t *, int64_t, int64_t *) nogil
    void ff_free_pieces(ff_pieces *)
    int32_t ff_find_piece(const ff_pieces *, const uint8_t *, int64_t)
    int ff_read_vocabulary(ff_vocabulary *, const uint8_t *, int64_t, int64_t *) nogil
    void ff_free_vocabulary(ff_vocabulary *)
    int32_t ff_find(const ff_vocabulary *, const uint8_t *, int64_t, int)
    void ff_prepare_letters(ff_tokenizer *)
    int ff_character(int32_t, int32_t *, int32_t *)
    int32_t *ff_tokenize_all(
        const ff_tokenizer *, const ff_text *, int64_t, int64_t, int, int64_t *, int64_t *, int8_t *, int) nogil


CLEAN, IDEOGRAPHS, STRIP, LOWER, LOWER_FIRST = FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
CONTROL, WHITE, PUNCTUATION, IDEOGRAPH, FENCE = FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_FENCE
MARK, SPLITS, WORD = FF_MARK, FF_SPLITS, FF_WORD
LONGEST, CUT, HALF, ASKED = FF_LONGEST, FF_CUT, FF_HALF, FF_ASKED


cdef extern from "Python.h":
    int PyUnicode_KIND(object) noexcept
    const void *PyUnicode_DATA(object) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object) noexcept


class Part(str):
    """A normalized part of a text between added tokens; ``later``: other parts are before it."""

    later = False


cdef int _fill(ff_text *given, list texts) except -1:
    """Point ``given`` at the characters of ``texts``; raise TypeError for other types than str."""
    cdef int64_t i
    for i in range(len(texts)):
        text = texts[i]
        if not isinstance(text, str):
            raise TypeError(f"text {i} is {type(text).__name__}, not str")
        given[i].letters, given[i].length = PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
        given[i].width, given[i].ready = PyUnicode_KIND(text), 0
        if type(text) is Part:
            given[i].ready = 2 if text.later else 1
    return 0


def character(int c):
    """Return (flags, canonical class, lower case, decomposition without accents) of code point c, as
    ``c/tokens/unicode.h``.
    """
    cdef int32_t row[3]
    cdef int32_t split[FF_EACH]
    if not 0 <= c < 0x110000:
        raise ValueError(f"{c} is no code point")
    cdef int count = ff_character(c, row, split)
    return row[0], row[1], row[2], tuple([split[i] for i in range(count)])


cdef class Vocabulary:
    """Read the JSON object of pieces and ids at byte ``start`` of ``json``; ``end``: the byte after it.

    Raises ValueError unless it is strict JSON with ids below 2^31. Of a repeated piece the last id counts.
    """

    cdef ff_vocabulary words
    cdef readonly int64_t end

    def __cinit__(self, const unsigned char[::1] json, int64_t start=0):
        if not 0 <= start < json.shape[0]:
            raise ValueError(f"a vocabulary cannot begin at byte {start} of {json.shape[0]}")
        cdef int failed
        cdef const uint8_t *first = &json[start]
        cdef int64_t length = json.shape[0] - start
        with nogil:
            failed = ff_read_vocabulary(&self.words, first, length, &self.end)
        if failed == FF_NO_MEMORY:
            raise MemoryError("no memory for the vocabulary")
        if failed != FF_READ:
            raise ValueError("the vocabulary is no JSON object of pieces and ids, or has odd ones")
        self.end += start

    def __dealloc__(self):
        ff_free_vocabulary(&self.words)

    def __len__(self):
        return self.words.count

    @property
    def largest(self):
        """The largest id of all pieces."""
        return self.words.largest

    def get(self, str piece):
        """Return the id of a piece that begins a word, or None."""
        cdef bytes letters = piece.encode()
        cdef bytes padded = letters + bytes(FF_SLACK)
        cdef int32_t found = ff_find(&self.words, padded, len(letters), FF_FIRST_PIECE) if letters else -1
        return None if found < 0 else found


cdef class Tokenizer:
    """Hold a vocabulary and rules. Immutable, so threads may share it.

    added: (ASCII bytes, id, white space taken), longest first; before, after: int32.
    """

    cdef ff_tokenizer w
    cdef ff_added *added
    cdef object keep_alive

    cdef int begin(self, list added, const int32_t[::1] before, const int32_t[::1] after) except -1:
        self.added = <ff_added *>calloc(max(len(added), 1), sizeof(ff_added))
        if self.added == NULL:
            raise MemoryError("no memory for the added tokens")
        for i, (content, number, takes) in enumerate(added):
            if not content or not content.isascii():
                raise ValueError("an added token is empty or has other letters than those of ASCII")
            self.added[i].letters, self.added[i].length = <const uint8_t *>(<bytes>content), <int32_t>len(content)
            self.added[i].id, self.added[i].takes = number, takes
        self.w.added, self.w.added_count = self.added, <int32_t>len(added)
        self.w.before_count, self.w.after_count = <int32_t>before.shape[0], <int32_t>after.shape[0]
        self.w.before = &before[0] if before.shape[0] else NULL
        self.w.after = &after[0] if after.shape[0] else NULL
        return 0

    def __dealloc__(self):
        free(self.added)

    def tokenize(self, list texts, int64_t limit, bint special, int threads):
        """Return (ids int32, offsets int64, states int8: FF_WHOLE to FF_ASKED; None if all are FF_WHOLE)."""
        cdef int64_t many = len(texts), i
        cdef int8_t worst = FF_WHOLE
        if limit < (self.w.before_count + self.w.after_count if special else 0):
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        offsets, states = np.zeros(many + 1, np.int64), None
        if many == 0:
            return np.empty(0, np.int32), offsets, None
        cdef int64_t[::1] to = offsets
        cdef int32_t[::1] ids
        cdef int8_t[::1] said
        cdef int32_t *found = NULL
        cdef ff_text *given = <ff_text *>calloc(many, sizeof(ff_text) + sizeof(int64_t) + 1)
        if given == NULL:
            raise MemoryError("no memory for the texts")
        cdef int64_t *starts = <int64_t *>(given + many)
        cdef int8_t *state = <int8_t *>(starts + many)
        try:
            _fill(given, texts)
            with nogil:
                found = ff_tokenize_all(&self.w, given, many, limit, special, starts, &to[1], state, threads)
            if found == NULL:
                raise MemoryError("no memory for the ids of the texts")
            for i in range(many):
                to[i + 1] += to[i]
                worst = max(worst, state[i])
            if worst == FF_FULL:
                raise MemoryError("no memory for a text")
            out = np.empty(to[many], np.int32)
            ids = out
            for i in range(many):
                if to[i + 1] > to[i]:
                    memcpy(&ids[to[i]], found + starts[i], (to[i + 1] - to[i]) * sizeof(int32_t))
            if worst:
                states = said = np.empty(many, np.int8)
                memcpy(&said[0], state, many)
            return out, offsets, states
        finally:
            free(given)
            free(found)


cdef class WordPiece(Tokenizer):
    """WordPiece by rules that ``tokens.Rules`` has checked; whole: words that are never cut, which need CLEAN."""

    def __cinit__(
        self, Vocabulary vocabulary, int steps, int unknown, int longest, list added,
        const int32_t[::1] before, const int32_t[::1] after, Vocabulary whole=None,
    ):
        if not 0 <= longest <= FF_LONGEST:
            raise ValueError(f"a word of {longest} letters is cut into pieces, and {FF_LONGEST} is the most here")
        if whole is not None and not steps & FF_CLEAN:
            raise ValueError("whole words need texts without control characters, CLEAN")
        self.begin(added, before, after)
        self.keep_alive = (vocabulary, added, before, after, whole)
        self.w.words = &vocabulary.words
        self.w.whole = NULL if whole is None else &whole.words
        self.w.steps, self.w.longest, self.w.unknown, self.w.each = steps, longest, unknown, FF_EACH
        ff_prepare_letters(&self.w)
