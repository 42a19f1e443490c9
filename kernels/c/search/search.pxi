cdef extern from "search/search.h":
    enum: FF_DOTS, FF_HAMMINGS, FF_PRODUCTS
    enum: FF_WIDEST
    ctypedef struct ff_scanned:
        const char *rows
        const char *queries
        char *out
        int64_t count, asked, width
    void ff_scan(int, int, const ff_scanned *, int) nogil
    ctypedef struct ff_compared:
        const int8_t *rows
        const int8_t *others
        const float *scale
        const float *other_scale
        const float *least
        const float *slack
        int64_t count, width
        int64_t begin "from"
        int64_t to
        int32_t *pairs
        int64_t room
    int64_t ff_compare(int, const ff_compared *, int) nogil


DOTS, HAMMINGS, WIDEST = FF_DOTS, FF_HAMMINGS, FF_WIDEST


def scan(const unsigned char[:, ::1] codes, const unsigned char[::1] query, int32_t[::1] out, int which, int isa, int threads):
    """Write int8 dot products (DOTS) or differing bits (HAMMINGS) of codes (n, width), query (width,) to out (n,)."""
    if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa) or which not in (FF_DOTS, FF_HAMMINGS):
        raise ValueError(f"scan {which} cannot run with instruction set {isa} on this machine")
    if not 1 <= codes.shape[1] <= FF_WIDEST or query.shape[0] != codes.shape[1] or out.shape[0] != codes.shape[0]:
        raise ValueError(
            f"codes of shape ({codes.shape[0]}, {codes.shape[1]}), a query of {query.shape[0]} bytes and {out.shape[0]} "
            f"results do not belong together, or a code has more than {FF_WIDEST} bytes"
        )
    cdef ff_scanned what
    what.count, what.asked, what.width = codes.shape[0], 1, codes.shape[1]
    if what.count == 0:
        return
    what.rows, what.queries, what.out = <const char *>&codes[0, 0], <const char *>&query[0], <char *>&out[0]
    with nogil:
        ff_scan(isa, which, &what, threads)


def products(const float[:, ::1] rows, const float[:, ::1] queries, float[:, ::1] out, int isa, int threads):
    """Write dot products of rows (n, D) and queries (q, D) to out (q, n), accumulated in float32."""
    if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
        raise ValueError(f"products cannot run with instruction set {isa} on this machine")
    if rows.shape[1] < 1 or queries.shape[1] != rows.shape[1] or (out.shape[0], out.shape[1]) != (queries.shape[0], rows.shape[0]):
        raise ValueError(
            f"rows of shape ({rows.shape[0]}, {rows.shape[1]}), queries of ({queries.shape[0]}, {queries.shape[1]}) and "
            f"results of ({out.shape[0]}, {out.shape[1]}) do not belong together"
        )
    cdef ff_scanned what
    what.count, what.asked, what.width = rows.shape[0], queries.shape[0], rows.shape[1] * <int64_t>sizeof(float)
    if what.count == 0 or what.asked == 0:
        return
    what.rows, what.queries, what.out = <const char *>&rows[0, 0], <const char *>&queries[0, 0], <char *>&out[0, 0]
    with nogil:
        ff_scan(isa, FF_PRODUCTS, &what, threads)


def compare(
    const int8_t[:, ::1] rows, const float[::1] scale, const float[::1] least, const int8_t[:, ::1] others,
    const float[::1] other_scale, const float[::1] slack, int64_t begin, int64_t end, int32_t[:, ::1] out, int isa, int threads
):
    """Write pairs of rows (n, D) and others (m, D) in [begin, end) that reach least (n,) less slack (m,) to out (.., 2)."""
    if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
        raise ValueError(f"pairs cannot be compared with instruction set {isa} on this machine")
    cdef int64_t n = rows.shape[0], m = others.shape[0], width = rows.shape[1]
    if not 1 <= width <= FF_WIDEST or others.shape[1] != width or scale.shape[0] != n or least.shape[0] != n:
        raise ValueError(f"codes of shape ({n}, {width}) and ({m}, {others.shape[1]}) and their scales do not belong together")
    if other_scale.shape[0] != m or slack.shape[0] != m or not 0 <= begin <= end <= m or out.shape[1] != 2 or max(n, m) >= 1 << 31:
        raise ValueError(f"{m} other codes, their scales, [{begin}, {end}) and pairs of {out.shape[1]} do not belong together")
    cdef ff_compared what
    if n == 0 or begin == end:
        return 0
    what.rows, what.others, what.scale, what.other_scale = &rows[0, 0], &others[0, 0], &scale[0], &other_scale[0]
    what.least, what.slack, what.count, what.width, what.begin, what.to = &least[0], &slack[0], n, width, begin, end
    what.room = out.shape[0]
    what.pairs = &out[0, 0] if what.room else NULL
    cdef int64_t found
    with nogil:
        found = ff_compare(isa, &what, threads)
    if found < 0:
        raise MemoryError("no memory to compare pairs") if found == -1 else ValueError("no product of int8 is usable here")
    return found
