cdef extern from "table/table.h":
    enum: FF_ROWS_FLOAT, FF_ROWS_HALF, FF_ROWS_BYTES, FF_ROWS_KINDS
    ctypedef struct ff_table:
        const char *rows
        const float *scales
        const float *weights
        const int32_t *mapping
        int64_t count, width, vocabulary, run
        int32_t stored, isa
    int ff_row_size(int stored)
    int64_t ff_table_check(const ff_table *, const int32_t *, const int64_t *, int64_t) nogil
    void ff_table_run(const ff_table *, const int32_t *, const int64_t *, int64_t, float *, int) nogil


ROWS_FLOAT, ROWS_HALF, ROWS_BYTES = FF_ROWS_FLOAT, FF_ROWS_HALF, FF_ROWS_BYTES


cdef class Table:
    """Hold a table of token vectors as in ``c/table/table.h``. Immutable, so threads may share it.

    rows: bytes of (R, width) numbers of kind ``stored``, not copied; scales, weights: (V,) float32 or None; mapping:
    (V,) int32, 0 to R - 1, or None, if V is R; run: tokens in a partial sum.
    """

    cdef ff_table table
    cdef object keep_alive

    def __cinit__(
        self, const unsigned char[::1] rows, int stored, int64_t width, const float[::1] scales,
        const float[::1] weights, const int32_t[::1] mapping, int64_t run, int isa,
    ):
        cdef int64_t i
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        if not 0 <= stored < FF_ROWS_KINDS or width < 1 or rows.shape[0] == 0 or rows.shape[0] % (width * ff_row_size(stored)):
            raise ValueError(f"{rows.shape[0]} bytes are no whole rows of {width} numbers of storage {stored}")
        if run < 1:
            raise ValueError(f"a run of tokens is at least 1, not {run}")
        if <uintptr_t>&rows[0] % ff_row_size(stored):
            raise ValueError("the rows of a table must be aligned to their numbers")
        self.table.count = rows.shape[0] // (width * ff_row_size(stored))
        self.table.vocabulary = self.table.count if mapping is None else mapping.shape[0]
        if scales is not None and scales.shape[0] != self.table.vocabulary:
            raise ValueError(f"{scales.shape[0]} scales do not fit a vocabulary of {self.table.vocabulary}")
        if weights is not None and weights.shape[0] != self.table.vocabulary:
            raise ValueError(f"{weights.shape[0]} weights do not fit a vocabulary of {self.table.vocabulary}")
        self.table.scales = self.table.weights = NULL
        self.table.mapping = NULL
        if self.table.vocabulary and mapping is not None:
            for i in range(mapping.shape[0]):
                if not 0 <= mapping[i] < self.table.count:
                    raise ValueError(f"id {i} has row {mapping[i]}, and the table has {self.table.count}")
            self.table.mapping = &mapping[0]
        if self.table.vocabulary and scales is not None:
            self.table.scales = &scales[0]
        if self.table.vocabulary and weights is not None:
            self.table.weights = &weights[0]
        self.keep_alive = (rows, scales, weights, mapping)
        self.table.rows, self.table.width = <const char *>&rows[0], width
        self.table.stored, self.table.isa, self.table.run = stored, isa, run

    def run(self, const int32_t[::1] ids, const int64_t[::1] offsets, float[:, ::1] out, int threads):
        """Write the mean of each text ids[offsets[i]:offsets[i + 1]] to out (B, width), accumulated in float32."""
        cdef int64_t texts = offsets.shape[0] - 1, bad
        cdef const int32_t *given = NULL
        if texts < 0 or offsets[0] != 0 or offsets[texts] != ids.shape[0]:
            raise ValueError("offsets must start at 0 and end at the number of ids")
        if out.shape[0] != texts or out.shape[1] != self.table.width:
            raise ValueError(f"out must be {(texts, self.table.width)}, not {out.shape[0], out.shape[1]}")
        if texts == 0:
            return
        if ids.shape[0]:
            given = &ids[0]
        cdef float *to = &out[0, 0]
        cdef const int64_t *at = &offsets[0]
        with nogil:
            bad = ff_table_check(&self.table, given, at, texts)
            if bad < 0:
                ff_table_run(&self.table, given, at, texts, to, threads)
        if bad >= 0:
            raise ValueError(f"text {bad} has an id outside the table, whose vectors are of 0 to {self.table.vocabulary - 1}")
