cdef extern from "embed/embed.h":
    enum: FF_NO_ROW
    ctypedef struct ff_embedder:
        const ff_tokenizer *words
        const ff_table *table
        const ff_encoder *encoder
        const ff_flow *flow
        int64_t limit
        int32_t special, left_out
    int ff_embed(const ff_embedder *, const ff_text *, int64_t, float *, int64_t, float *, int8_t *, int, int) nogil


cdef class Embedder:
    """Tokenize, pool and calibrate texts in one call, as in ``c/embed/embed.h``. Immutable, so threads may share it.

    pooling: a Table, or an Encoder without layers; left_out: an id that is removed from every text, or -1.
    """

    cdef ff_embedder embedder  # run() sets the flow of a copy
    cdef int64_t width
    cdef object keep_alive

    def __cinit__(self, Tokenizer words, pooling, int64_t limit, bint special, int left_out):
        cdef Table table = pooling if isinstance(pooling, Table) else None
        cdef Encoder encoder = pooling if isinstance(pooling, Encoder) else None
        if table is not None:
            self.embedder.table, self.width = &table.table, table.table.width
        elif encoder is not None:
            self.embedder.encoder, self.width = &encoder.encoder, encoder.encoder.outputs
        else:
            raise ValueError("a pooling is a Table or an Encoder")
        if limit < (words.w.before_count + words.w.after_count if special else 0):
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        self.keep_alive = (words, pooling)
        self.embedder.words = &words.w
        self.embedder.limit, self.embedder.special, self.embedder.left_out = limit, special, left_out

    def run(self, Flow flow, list texts, float[:, ::1] out, bint normalize, int threads, float[:, ::1] pooled=None):
        """Write the embeddings of B ``texts`` (str) to out (B, at most the flow's N columns), and the pooled vectors to
        ``pooled`` (B, D) if given. Return the number of texts that were cut. Return -1 if a text cannot be tokenized
        here or has an id without a row; out is then unusable.
        """
        cdef int64_t many = len(texts), i, cut = 0
        cdef int failed
        cdef ff_embedder embedder = self.embedder
        if self.width != flow.flow.inputs:
            raise ValueError(f"the pooling has {self.width} numbers, and the flow takes {flow.flow.inputs}")
        if out.shape[0] != many or not 1 <= out.shape[1] <= flow.flow.outputs:
            raise ValueError(f"out must be {(many, flow.flow.outputs)} or narrower, not {out.shape[0], out.shape[1]}")
        if pooled is not None and (pooled.shape[0] != many or pooled.shape[1] != self.width):
            raise ValueError(f"pooled must be {(many, self.width)}, not {pooled.shape[0], pooled.shape[1]}")
        embedder.flow = &flow.flow
        if many == 0:
            return 0
        cdef float *to = &out[0, 0]
        cdef float *kept = NULL if pooled is None else &pooled[0, 0]
        cdef ff_text *given = <ff_text *>malloc(many * (sizeof(ff_text) + 1))
        if given == NULL:
            raise MemoryError("no memory for the texts")
        cdef int8_t *states = <int8_t *>(given + many)
        try:
            _fill(given, texts)
            memset(states, 0, many)
            with nogil:
                failed = ff_embed(&embedder, given, many, to, out.shape[1], kept, states, normalize, threads)
            if failed:
                raise MemoryError("no memory to embed the texts")
            for i in range(many):
                if states[i] > FF_CUT:
                    return -1
                cut += states[i] == FF_CUT
            return cut
        finally:
            free(given)
