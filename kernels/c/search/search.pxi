cdef extern from "search/search.h":
    enum: FF_DOTS, FF_HAMMINGS, FF_PRODUCTS
    enum: FF_WIDEST
    ctypedef struct ff_scanned:
        const char *rows
        const char *queries
        char *out
        int64_t count, asked, width
    void ff_scan(int, int, const ff_scanned *, int) nogil


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
