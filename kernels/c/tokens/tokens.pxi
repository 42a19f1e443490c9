cdef extern from "tokens/tokens.h":
    enum: FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
    enum: FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_MARK, FF_SPLITS, FF_FENCE, FF_WORD
    enum: FF_LONGEST, FF_EACH
    enum: FF_WHOLE, FF_CUT, FF_HALF, FF_ASKED, FF_FULL
    enum: FF_MAPPED, FF_KEPT, FF_LOWERED, FF_REPLACED, FF_JOINED, FF_STRIPPED, FF_ODDS
    enum: FF_READ, FF_NO_MEMORY, FF_FIRST_PIECE, FF_LONGEST_PIECE, FF_SLACK
    ctypedef struct ff_vocabulary:
        int64_t count
        int32_t largest
        int32_t lengths[256]
        int scored
        const double *scores
    ctypedef struct ff_added:
        const uint8_t *letters
        int32_t length, id, takes
    ctypedef struct ff_rule:
        int32_t kind, old_length, new_length
        const uint8_t *old
        const uint8_t *made "new"
        uint8_t *odd
    ctypedef struct ff_buffer
    ctypedef struct ff_unigram:
        const ff_rule *steps
        const ff_added *later
        int32_t step_count, later_count, words, chunks
        int (*ask)(void *, const uint8_t *, int64_t, ff_buffer *) noexcept
        void *context
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
        int32_t width
    int ff_read_vocabulary(ff_vocabulary *, const uint8_t *, int64_t, int64_t *) nogil
    void ff_free_vocabulary(ff_vocabulary *)
    int32_t ff_find(const ff_vocabulary *, const uint8_t *, int64_t, int)
    int32_t ff_find_piece(const ff_vocabulary *, const uint8_t *, int64_t)
    void ff_prepare_letters(ff_tokenizer *)
    int ff_character(int32_t, int32_t *, int32_t *)
    int64_t ff_room(const ff_tokenizer *, const ff_text *, int64_t, int)
    int ff_tokenize(const ff_tokenizer *, const ff_text *, int64_t, int, int32_t *, int64_t *)
    int32_t *ff_tokenize_all(
        const ff_tokenizer *, const ff_text *, int64_t, int64_t, int, int64_t *, int64_t *, int8_t *, int) nogil


CLEAN, IDEOGRAPHS, STRIP, LOWER, LOWER_FIRST = FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
CONTROL, WHITE, PUNCTUATION, IDEOGRAPH, FENCE = FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_FENCE
MARK, SPLITS, WORD = FF_MARK, FF_SPLITS, FF_WORD
LONGEST, CUT, HALF, MOST_ADDED = FF_LONGEST, FF_CUT, FF_HALF, 256


cdef extern from "Python.h":
    int PyUnicode_KIND(object) noexcept
    const void *PyUnicode_DATA(object) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object) noexcept


cdef int _fill(ff_text *given, list texts) except -1:
    """Point ``given`` at the characters of ``texts``; raise TypeError for other types than str."""
    cdef int64_t i
    for i in range(len(texts)):
        text = texts[i]
        if not isinstance(text, str):
            raise TypeError(f"text {i} is {type(text).__name__}, not str")
        given[i].letters, given[i].length = PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
        given[i].width = PyUnicode_KIND(text)
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
    """Read the JSON object of pieces and ids, or array of pieces and scores, at byte ``start`` of ``json``.

    ``end``: the byte after it; ``scored``: it is an array, for Unigram, in which a piece's id is its place. Raises
    ValueError unless it is strict JSON with short pieces. The last of repeated pieces counts.
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
            raise ValueError("the vocabulary is no JSON of pieces and ids or scores, or has odd ones")
        self.end += start

    def __dealloc__(self):
        ff_free_vocabulary(&self.words)

    def __len__(self):
        return self.words.count

    @property
    def scored(self):
        return bool(self.words.scored)

    @property
    def largest(self):
        """The largest id of all pieces."""
        return self.words.largest

    @property
    def lengths(self):
        """The number of different pieces of 0, 1, 2, ... characters."""
        return [self.words.lengths[i] for i in range(FF_LONGEST_PIECE + 1)]

    @property
    def scores(self):
        """The score of each id."""
        return [self.words.scores[i] for i in range(self.words.count if self.words.scored else 0)]

    def get(self, str piece):
        """Return the id of a piece, of WordPiece one that begins a word, or None."""
        cdef bytes letters = piece.encode()
        cdef bytes padded = letters + bytes(FF_SLACK)
        cdef int32_t found = -1
        if self.words.scored:
            found = ff_find_piece(&self.words, letters, len(letters))
        elif letters:
            found = ff_find(&self.words, padded, len(letters), FF_FIRST_PIECE)
        return None if found < 0 else found


cdef int _ask(void *context, const uint8_t *letters, int64_t n, ff_buffer *made) noexcept:
    """Normalize letters by the library of a Tokenizer. Return 0 after an error, which the Tokenizer keeps."""
    cdef Tokenizer tokenizer = <Tokenizer>context
    try:
        text = tokenizer.normalize(letters[:n].decode()).encode()
        ff_put(made, text, len(text))
        return 1
    except BaseException as error:
        tokenizer.error = error
        return 0


cdef class Tokenizer:
    """Hold a vocabulary and rules. Immutable, so threads may share it.

    added: (ASCII bytes, id, whether it takes the white space before it), longest first; before, after: int32.
    """

    cdef ff_tokenizer w, asking  # asking: for texts that a library must normalize
    cdef ff_added added[256]
    cdef object keep_alive, normalize, error

    cdef int begin(
        self, Vocabulary words, int unknown, list added, const int32_t[::1] before, const int32_t[::1] after, int each,
    ) except -1:
        if len(added) > MOST_ADDED:
            raise ValueError(f"{len(added)} tokens are added, more than {MOST_ADDED}")
        for i, (content, number, takes) in enumerate(added):
            if not content or not content.isascii():
                raise ValueError("an added token is empty or has other letters than those of ASCII")
            self.added[i].letters, self.added[i].length = <const uint8_t *>(<bytes>content), <int32_t>len(content)
            self.added[i].id, self.added[i].takes = number, takes
        self.w.words, self.w.unknown, self.w.each = &words.words, unknown, each
        self.w.added, self.w.added_count = self.added, <int32_t>len(added)
        self.w.before_count, self.w.after_count = <int32_t>before.shape[0], <int32_t>after.shape[0]
        self.w.before = &before[0] if before.shape[0] else NULL
        self.w.after = &after[0] if after.shape[0] else NULL
        return 0

    def tokenize(self, list texts, int64_t limit, bint special, int threads):
        """Return (ids int32, offsets int64, states int8: FF_WHOLE to FF_HALF; None if all are FF_WHOLE)."""
        cdef int64_t many = len(texts), i, room
        cdef int8_t worst = FF_WHOLE
        if limit < (self.w.before_count + self.w.after_count if special else 0):
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        offsets, states = np.zeros(many + 1, np.int64), None
        if many == 0:
            return np.empty(0, np.int32), offsets, None
        cdef int64_t[::1] to = offsets
        cdef int32_t[::1] ids
        cdef int32_t *found = NULL
        cdef int32_t *more
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
            room = starts[many - 1] + ff_room(&self.w, &given[many - 1], limit, special)
            for i in range(many):
                if state[i] == FF_ASKED:  # asked by this thread, for a fork waits for the pool, and has the GIL
                    starts[i] = room
                    room += ff_room(&self.asking, &given[i], limit, special)
                    more = <int32_t *>realloc(found, room * sizeof(int32_t))
                    if more == NULL:
                        raise MemoryError("no memory for the ids of the texts")
                    found = more
                    state[i] = ff_tokenize(&self.asking, &given[i], limit, special, found + starts[i], &to[i + 1])
                    if state[i] == FF_ASKED:
                        raise self.error
                    room = starts[i] + to[i + 1]
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
                states = np.array(<int8_t[:many]>state)
            return out, offsets, states
        finally:
            free(given)
            free(found)


cdef class WordPiece(Tokenizer):
    """WordPiece by rules that ``tokens.Rules`` has checked; whole: words that are never cut, which need CLEAN."""

    def __cinit__(
        self, Vocabulary words, int unknown, list added, const int32_t[::1] before, const int32_t[::1] after,
        int steps, int longest, Vocabulary whole=None,
    ):
        if words.words.scored or (whole is not None and whole.words.scored):
            raise ValueError("the pieces have scores, for Unigram")
        if not 0 <= longest <= FF_LONGEST:
            raise ValueError(f"a word of {longest} letters is cut into pieces, and {FF_LONGEST} is the most here")
        if whole is not None and not steps & FF_CLEAN:
            raise ValueError("whole words need texts without control characters, CLEAN")
        self.begin(words, unknown, added, before, after, FF_EACH)
        self.keep_alive = (words, added, before, after, whole)
        self.w.whole = NULL if whole is None else &whole.words
        self.w.steps, self.w.longest = steps, longest
        ff_prepare_letters(&self.w)
