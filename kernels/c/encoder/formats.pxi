def trim():
    """Return freed memory to the system, if the C library can."""
    ff_trim()


def formats(int isa):
    """Return the products' formats (``c/gemm/gemm.h``) that this machine computes on ``isa``, the preferred first."""
    found = [f for f in range(FF_FORMATS) if ff_product_of(isa, f) != NULL]
    return sorted(found, key=lambda f: f == FF_BF16 and ff_slow_dots(isa))


def steps_together(int isa, int format):
    """Return how many adjacent steps of a column lie together in a panel of weights."""
    return ff_steps_together(isa, format)


def attention_formats(int isa):
    """Return the attention formats of this machine: FLOAT, and BF16 and INT8 if the processor has their products."""
    return [f for f in range(FF_FORMATS) if ff_attention_of(isa, f) != NULL]


def amx_missing():
    """Return why AMX cannot run here; "" if it can. The first call asks the operating system for permission."""
    return ff_amx_missing().decode()


def try_tile(
    int isa, bint whole, const unsigned char[:, ::1] a, const unsigned char[:, ::1] b, unsigned char[:, ::1] c
):
    """Add a b to c in place, tiles of (16, 64) bytes: int8 summed in int32 if ``whole``, else bfloat16 in float32."""
    if not FF_AMX <= isa < FF_ISAS or not ff_isa_usable(isa):
        raise ValueError(f"instruction set {isa} has no tiles that can be used on this machine")
    if {(a.shape[0], a.shape[1]), (b.shape[0], b.shape[1]), (c.shape[0], c.shape[1])} != {(16, 64)}:
        raise ValueError("a tile has 16 rows of 64 bytes")
    ff_try_tile(isa, whole, &a[0, 0], &b[0, 0], &c[0, 0])


def attend_head(
    int isa, int format, const float[:, ::1] qkv, float[:, ::1] out, int64_t window, const float[::1] bias, *,
    bint half=False,
):
    """Compute attention of one head of one text: qkv (T, 3 size) -> out (T, size), summed in float32 or int32.

    ``format``: one of ``attention_formats(isa)``. Except for FLOAT, qkv is rounded to bfloat16 first, and with ``half``
    results too. ``window`` and ``bias`` (2 (reach + BIAS_MARGIN) + 1,) or None: as in ``c/encoder/encoder.h``.
    """
    if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa) or format not in attention_formats(isa):
        raise ValueError(f"instruction set {isa} has no attention of format {format} on this machine")
    cdef int vector = ff_isa_vector(isa)
    cdef int64_t tokens = qkv.shape[0], blocks = (tokens + FF_QUERIES - 1) // FF_QUERIES, b
    if tokens < 1 or out.shape[0] != tokens or out.shape[1] < 1 or qkv.shape[1] != 3 * out.shape[1] or out.shape[1] % (2 * vector):
        raise ValueError("attention maps (T, 3 size) to (T, size), size in whole panels")
    if half and format == FF_FLOAT:
        raise ValueError("results are bfloat16 where attention is not in float32")
    rows = np.asarray(qkv).view(np.uint32)
    if format != FF_FLOAT:
        rows = (rows + 0x7FFF + (rows >> 16 & 1) >> 16).astype(np.uint16)
    results = np.empty((tokens, out.shape[1]), np.uint16 if half else np.float32)
    cdef const unsigned char[:, ::1] given = rows.view(np.uint8)
    cdef unsigned char[:, ::1] got = results.view(np.uint8)
    cdef ff_head head
    head.q, head.ldq, head.out, head.ldout = <const char *>&given[0, 0], given.shape[1], <char *>&got[0, 0], got.shape[1]
    head.half = half
    head.tokens, head.size, head.window, head.bias, head.reach = tokens, <int>out.shape[1], window, NULL, 0
    if bias is not None:
        if bias.shape[0] < 2 * FF_BIAS_MARGIN + 1 or bias.shape[0] % 2 == 0:
            raise ValueError(f"a table of biases has 2 (reach + {FF_BIAS_MARGIN}) + 1 numbers")
        head.bias, head.reach = &bias[0], bias.shape[0] // 2 - FF_BIAS_MARGIN
    cdef float[::1] keys = np.empty(ff_keys_floats(tokens, head.size, vector), np.float32)
    cdef float[::1] scratch = np.empty(ff_attention_floats(tokens, head.size, vector), np.float32)
    cdef const ff_attention *attention = ff_attention_of(isa, format)
    with nogil:
        ff_switch_tiles(isa, 1)
        attention.pack_keys(&head, &keys[0])
        for b in range(blocks):
            attention.attend(&head, b * tokens // blocks, (b + 1) * tokens // blocks, &keys[0], &scratch[0])
        ff_switch_tiles(isa, 0)
    np.asarray(out)[:] = (results.astype(np.uint32) << 16).view(np.float32) if half else results
