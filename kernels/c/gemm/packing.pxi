cdef extern from "gemm/packing.h":
    enum: FF_LARGEST
    enum: FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16, FF_STORED_KINDS
    enum: FF_PARTS
    int ff_stored_size(int stored)
    ctypedef struct ff_matrix:
        const char *parts[3]
        const int32_t *rows
        int64_t part_rows, columns, height, groups, padded, lanes, together, spare
        char *panels
        float *scale
        int32_t *shift
        int32_t zero, stored
        float factor
        const float *by
    int ff_pack(const ff_matrix *, int64_t, int, int32_t *, int) nogil
    int32_t ff_convert(const char *, int, int64_t, void *, int, int) nogil


LARGEST_BITS = FF_LARGEST  # bits of stored.LARGEST as float32
STORED_FLOAT, STORED_HALF, STORED_BF16 = FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16


def convert(const unsigned char[::1] source, int stored, target, bint half, int threads):
    """Convert the numbers in ``source``'s bytes to float32 or IEEE half in ``target``'s bytes; None: only check them.

    ``stored``: their type, STORED_FLOAT ... Returns the bits of the largest magnitude as float32, at least 0x7f800000
    for infinity or NaN.
    """
    if not 0 <= stored < FF_STORED_KINDS or source.shape[0] % ff_stored_size(stored):
        raise ValueError(f"{source.shape[0]} bytes are no whole numbers of storage {stored}")
    cdef int64_t count = source.shape[0] // ff_stored_size(stored)
    cdef unsigned char[::1] written
    cdef void *to = NULL
    cdef int32_t largest
    if count == 0:
        return 0
    if target is not None:
        written = target
        if written.shape[0] != count * (2 if half else 4):
            raise ValueError(f"{count} numbers do not fit {written.shape[0]} bytes")
        to = &written[0]
    cdef const char *data = <const char *>&source[0]
    with nogil:
        largest = ff_convert(data, stored, count, to, half, threads)
    return largest


def pack(matrices, unsigned char[::1] memory, int panel, int threads):
    """Fill ``memory`` with ``matrices`` (``stored.Matrix``) in panels of ``panel`` rows.

    Returns [(matrix, part)] of parts with NaN, infinity or magnitudes above ``stored.LARGEST``. Raises ValueError for
    matrices that do not fit.
    """
    cdef int64_t count = len(matrices), i, r, inner, steps, limit
    cdef const unsigned char[::1] part
    cdef const int32_t[::1] rows
    cdef const float[::1] by
    cdef int failed
    if count == 0:
        return []
    if panel < 1 or memory.shape[0] == 0 or <uintptr_t>&memory[0] % 64:
        raise ValueError("matrices are packed in panels of at least one row, into 64-byte aligned memory")
    cdef ff_matrix *m = <ff_matrix *>calloc(count, sizeof(ff_matrix))
    cdef int32_t *bad = <int32_t *>calloc(count, sizeof(int32_t))
    try:
        if m == NULL or bad == NULL:
            raise MemoryError("no memory for the list of matrices")
        for i, given in enumerate(matrices):
            rows = given.rows
            m[i].part_rows, m[i].columns, m[i].height = given.part_rows, given.columns, rows.shape[0]
            m[i].groups, m[i].padded, m[i].lanes = given.groups, given.padded, given.lanes
            m[i].together = given.together
            m[i].zero, m[i].stored, m[i].factor, m[i].spare = given.zero, given.stored, given.factor, given.spare
            if (
                not 0 <= m[i].stored < FF_STORED_KINDS or m[i].lanes not in (1, 2, 4) or m[i].groups < 1
                or m[i].part_rows < 1 or m[i].spare < 0 or m[i].columns < 1 or m[i].columns % m[i].groups
                or m[i].padded < m[i].columns // m[i].groups or not 1 <= len(given.parts) <= FF_PARTS
            ):
                raise ValueError(f"matrix {i} cannot be packed as it is described")
            inner = m[i].groups * m[i].padded
            steps = inner // m[i].lanes + m[i].spare
            if m[i].together not in (1, 2) or m[i].spare % m[i].together or inner % (m[i].lanes * m[i].together) or rows.shape[0] == 0 or rows.shape[0] % panel:
                raise ValueError(f"matrix {i} does not fill whole steps and panels")
            for p, stored in enumerate(given.parts):
                part = stored
                if part.shape[0] != m[i].part_rows * m[i].columns * ff_stored_size(m[i].stored):
                    raise ValueError(f"matrix {i}, part {p}: {part.shape[0]} bytes are not its rows and columns")
                m[i].parts[p] = <const char *>&part[0]
            limit = len(given.parts) * m[i].part_rows
            for r in range(rows.shape[0]):
                if rows[r] < -1 or rows[r] >= limit:
                    raise ValueError(f"matrix {i} has no row {rows[r]}")
            m[i].rows = &rows[0]
            if given.by is not None:
                by = given.by
                if m[i].lanes != 4 or m[i].groups != 1 or by.shape[0] != m[i].columns:
                    raise ValueError(f"matrix {i}: factors of columns are of bytes in one group, one a column")
                m[i].by = &by[0]
            for at, size in ((given.panels, 4 * steps), *(((given.scale, 4), (given.shift, 4)) if m[i].lanes == 4 else ())):
                if not 0 <= at <= memory.shape[0] - size * rows.shape[0] or at % 64:
                    raise ValueError(f"matrix {i} does not lie in the memory, or not on a line")
            m[i].panels = <char *>&memory[0] + <int64_t>given.panels
            m[i].scale = <float *>(<char *>&memory[0] + <int64_t>given.scale)
            m[i].shift = <int32_t *>(<char *>&memory[0] + <int64_t>given.shift)
        with nogil:
            failed = ff_pack(m, count, panel, bad, threads)
        if failed:
            raise MemoryError("no memory for the scratch space of packing")
        return [(i, p) for i in range(count) for p in range(FF_PARTS) if bad[i] >> p & 1]
    finally:
        free(m)
        free(bad)
