# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""The compiled kernels: this file checks shapes, c/ has the arithmetic, and the GIL is released during it.

Numbers and records that Python shares with C come from C's own headers, under C's names without FF_ or ff_.
"""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

cdef extern from "cpu.h":
    enum: FF_AVX512, FF_AMX, FF_ISAS
    const char *ff_isa_name(int isa)
    int ff_isa_usable(int isa)
    int ff_isa_vector(int isa)
    int ff_isa_rows(int isa)
    const char *ff_amx_missing()

cdef extern from "flow/flow.h":
    enum: FF_CENTRE, FF_GATHER, FF_PRODUCT
    enum: FF_ADD, FF_RELU, FF_GATE, FF_SPLIT
    enum: FF_ASCENDING, FF_DESCENDING, FF_SCATTERED
    enum: FF_INPUT
    ctypedef struct ff_op:
        int32_t kind, to, columns, weights, bias, table, parts, mode
    ctypedef struct ff_flow:
        const float *weights
        const ff_op *ops
        const int32_t *table
        int32_t count, inputs, outputs, result, stride, block, cost, isa
    int ff_flow_run(const ff_flow *, const float *, float *, int64_t, int32_t, int, int) nogil


CENTRE, GATHER, PRODUCT = FF_CENTRE, FF_GATHER, FF_PRODUCT
ADD, RELU, GATE, SPLIT = FF_ADD, FF_RELU, FF_GATE, FF_SPLIT
ASCENDING, DESCENDING, SCATTERED = FF_ASCENDING, FF_DESCENDING, FF_SCATTERED
INPUT = FF_INPUT
cdef ff_op _op
OP = np.asarray(<ff_op[:1]>&_op).dtype  # NumPy refuses a record whose fields above do not fill C's


def isas():
    """name -> (number, usable here, floats in a vector, rows in a tile), worst first."""
    return {
        ff_isa_name(i).decode(): (i, bool(ff_isa_usable(i)), ff_isa_vector(i), ff_isa_rows(i)) for i in range(FF_ISAS)
    }


cdef class Flow:
    """A flow that is laid out for one instruction set. Immutable, so safe from several threads at once.

    weights: float32, its first element 64-byte aligned; ops: (n,) of ``OP``, and table: int32, as in ``c/flow/flow.h``.
    """

    cdef ff_flow flow
    cdef object keep_alive

    def __cinit__(
        self, const float[::1] weights, const ff_op[::1] ops, const int32_t[::1] table, *,
        int inputs, int outputs, int result, int stride, int block, int cost, int isa,
    ):
        if ops.shape[0] == 0 or weights.shape[0] == 0 or table.shape[0] == 0:
            raise ValueError("a packed flow needs weights, operations and a table")
        if <uintptr_t>&weights[0] % 64:
            raise ValueError("the weights of a packed flow must be 64-byte aligned")
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        self.keep_alive = (weights, ops, table)
        self.flow.weights, self.flow.table = &weights[0], &table[0]
        self.flow.ops, self.flow.count = &ops[0], <int32_t>ops.shape[0]
        self.flow.inputs, self.flow.outputs, self.flow.result = inputs, outputs, result
        self.flow.stride, self.flow.block, self.flow.cost, self.flow.isa = stride, block, cost, isa

    def run(self, const float[:, ::1] x, float[:, ::1] z, bint normalize, int threads):
        """Write the first columns of the result for x (B, D) to z (B, keep), keep <= N, accumulated in float32."""
        if x.shape[1] != self.flow.inputs or z.shape[0] != x.shape[0] or not 1 <= z.shape[1] <= self.flow.outputs:
            raise ValueError(
                f"the flow maps (B, {self.flow.inputs}) to (B, {self.flow.outputs}) or fewer columns, "
                f"not ({x.shape[0]}, {x.shape[1]}) to ({z.shape[0]}, {z.shape[1]})"
            )
        if x.shape[0] == 0:
            return
        cdef int failed
        cdef const float *source = &x[0, 0]
        cdef float *target = &z[0, 0]
        cdef int64_t rows = x.shape[0]
        cdef int32_t keep = <int32_t>z.shape[1]
        with nogil:
            failed = ff_flow_run(&self.flow, source, target, rows, keep, normalize, threads)
        if failed:
            raise MemoryError("no memory for the scratch space of the flow")


cdef extern from "encoder/encoder.h":
    enum: FF_EMBED, FF_LINEAR, FF_PACK, FF_ATTEND, FF_NORM, FF_CONVERT, FF_ROTATE, FF_GLU, FF_POOL, FF_FIRST, FF_UNIT
    enum: FF_MAP, FF_OUTPUT, FF_STEP_KINDS
    enum: FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN, FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN
    enum: FF_MAP_IDENTITY, FF_MAP_TANH, FF_MAP_RELU, FF_MAP_GELU, FF_MAP_SIGMOID, FF_MAP_SILU, FF_MAP_ELU
    enum: FF_MAP_LEAKY_RELU, FF_MAP_SOFTPLUS, FF_MAP_SOFTSIGN, FF_MAP_RELU6, FF_MAP_HARDTANH, FF_MAP_MISH
    enum: FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH
    enum: FF_FLOAT, FF_BF16, FF_BF16_WIDE, FF_INT8, FF_INT8_SIGNED, FF_INT8_TILES, FF_FORMATS
    enum: FF_ZERO_POINT, FF_APART
    enum: FF_TILE_STEPS
    enum: FF_BUFFERS, FF_BIAS_MARGIN, FF_KEYS, FF_QUERIES, FF_BYTES_FROM
    ctypedef struct ff_linear:
        int64_t weights, bias, scale, shift, columns, steps, format, apart, result
    ctypedef struct ff_embed_step:
        int64_t kind, target, width, scale, bias, mean
    ctypedef struct ff_linear_step:
        int64_t kind, source, target, texts, product, activation, add
    ctypedef struct ff_attend_step:
        int64_t kind, source, target, format, result, window, biases, reach
    ctypedef struct ff_norm_step:
        int64_t kind, source, target, texts, width, scale, bias, eps
    ctypedef struct ff_convert_step:
        int64_t kind, source, target, width, format, factors, apart
    ctypedef struct ff_rotate_step:
        int64_t kind, target, table
    ctypedef struct ff_glu_step:
        int64_t kind, target, width, activation
    ctypedef struct ff_pool_step:
        int64_t kind, source, target, width, slot, mode, column, share, first
    ctypedef struct ff_first_step:
        int64_t kind, source, target, width, slot
    ctypedef struct ff_unit_step:
        int64_t kind, target, width
    ctypedef struct ff_map_step:
        int64_t kind, target, width, activation, add
    ctypedef struct ff_output_step:
        int64_t kind, source, width
    ctypedef union ff_step:
        int64_t kind
        ff_embed_step embed
        ff_linear_step linear
        ff_attend_step attend
        ff_norm_step norm
        ff_convert_step convert
        ff_rotate_step rotate
        ff_glu_step glu
        ff_pool_step pool
        ff_first_step first
        ff_unit_step unit
        ff_map_step map
        ff_output_step output
    ctypedef struct ff_head:
        const char *q
        ptrdiff_t ldq, ldout
        int64_t tokens, window, reach
        const float *bias
        char *out
        int half, size
    ctypedef struct ff_attention:
        void (*pack_keys)(const ff_head *, float *) nogil
        void (*attend)(const ff_head *, int64_t, int64_t, const float *, float *) nogil
    ctypedef struct ff_encoder:
        const char *memory
        const ff_linear *linears
        const ff_step *steps
        const int64_t *strides
        const float *positions
        const void *words
        const float *token_weights
        int32_t half, count, buffers, heads, head, hidden, outputs, position_start, pad_id, vocabulary, position_rows
        int32_t layers, isa
        float eps
    ctypedef struct ff_texts:
        const int32_t *ids
        const int64_t *offsets
        int64_t texts, skip
        float *pooled
        float *states
    int ff_encoder_run(const ff_encoder *, const ff_texts *, int) nogil
    int64_t ff_check_texts(const ff_encoder *, const ff_texts *) nogil
    void *ff_product_of(int isa, int format)
    const ff_attention *ff_attention_of(int isa, int format)
    size_t ff_keys_floats(int64_t tokens, int head, int vector)
    size_t ff_attention_floats(int64_t tokens, int head, int vector)
    int ff_slow_dots(int isa)
    void ff_switch_tiles(int isa, int on) nogil
    void ff_try_tile(int isa, int whole, const void *a, const void *b, void *c)
    void ff_trim()


EMBED, LINEAR, ATTEND, NORM = FF_EMBED, FF_LINEAR, FF_ATTEND, FF_NORM
ROTATE, GLU, PACK = FF_ROTATE, FF_GLU, FF_PACK
POOL, FIRST, CONVERT, UNIT, MAP, OUTPUT = FF_POOL, FF_FIRST, FF_CONVERT, FF_UNIT, FF_MAP, FF_OUTPUT
MEAN, MEAN_SQRT, POSITION_MEAN = FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN
LARGEST_OF, FIRST_TOKEN, LAST_TOKEN = FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN
MAPS = {  # the activations of MAP
    "identity": FF_MAP_IDENTITY, "tanh": FF_MAP_TANH, "relu": FF_MAP_RELU, "gelu": FF_MAP_GELU,
    "sigmoid": FF_MAP_SIGMOID, "silu": FF_MAP_SILU, "elu": FF_MAP_ELU, "leaky_relu": FF_MAP_LEAKY_RELU,
    "softplus": FF_MAP_SOFTPLUS, "softsign": FF_MAP_SOFTSIGN, "relu6": FF_MAP_RELU6, "hardtanh": FF_MAP_HARDTANH,
    "mish": FF_MAP_MISH,
}
LINEAR_ONLY, GELU, GELU_TANH, RELU_ONLY, TANH = FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY, FF_TANH
FLOAT, BF16, BF16_WIDE = FF_FLOAT, FF_BF16, FF_BF16_WIDE
INT8, INT8_SIGNED, INT8_TILES = FF_INT8, FF_INT8_SIGNED, FF_INT8_TILES
ZERO_POINT, APART, TILE_STEPS, BIAS_MARGIN = FF_ZERO_POINT, FF_APART, FF_TILE_STEPS, FF_BIAS_MARGIN
KEYS, BYTES_FROM = FF_KEYS, FF_BYTES_FROM
cdef ff_linear _linear
cdef ff_step _step
LINEAR_FIELDS = np.asarray(<ff_linear[:1]>&_linear).dtype
STEPS = {  # kind -> its record, of int64 alone
    EMBED: np.asarray(<ff_embed_step[:1]>&_step.embed).dtype,
    LINEAR: np.asarray(<ff_linear_step[:1]>&_step.linear).dtype,
    PACK: np.asarray(<ff_attend_step[:1]>&_step.attend).dtype,
    ATTEND: np.asarray(<ff_attend_step[:1]>&_step.attend).dtype,
    NORM: np.asarray(<ff_norm_step[:1]>&_step.norm).dtype,
    CONVERT: np.asarray(<ff_convert_step[:1]>&_step.convert).dtype,
    ROTATE: np.asarray(<ff_rotate_step[:1]>&_step.rotate).dtype,
    GLU: np.asarray(<ff_glu_step[:1]>&_step.glu).dtype,
    POOL: np.asarray(<ff_pool_step[:1]>&_step.pool).dtype,
    FIRST: np.asarray(<ff_first_step[:1]>&_step.first).dtype,
    UNIT: np.asarray(<ff_unit_step[:1]>&_step.unit).dtype,
    MAP: np.asarray(<ff_map_step[:1]>&_step.map).dtype,
    OUTPUT: np.asarray(<ff_output_step[:1]>&_step.output).dtype,
}
STEP_NUMBERS = sizeof(ff_step) // sizeof(int64_t)  # in a step of any kind: a shorter record ends in zeros


def trim():
    """Give freed memory back to the system, if the C library can."""
    ff_trim()


def formats(int isa):
    """The formats of ``c/gemm/gemm.h``, as numbers, whose products this machine computes on instruction set ``isa``, in
    the order of preference."""
    found = [f for f in range(FF_FORMATS) if ff_product_of(isa, f) != NULL]
    return sorted(found, key=lambda f: f == FF_BF16 and ff_slow_dots(isa))


def attention_formats(int isa):
    """The formats whose attention this machine computes: FLOAT, and BF16 and INT8 if the processor has their products."""
    return [f for f in range(FF_FORMATS) if ff_attention_of(isa, f) != NULL]


def amx_missing():
    """Why AMX cannot run here; empty if it can. The first call asks the operating system for permission."""
    return ff_amx_missing().decode()


def tile_trial(
    int isa, bint whole, const unsigned char[:, ::1] a, const unsigned char[:, ::1] b, unsigned char[:, ::1] c
):
    """c += a b in place for one tile each, (16, 64) bytes: int8 accumulated in int32 if ``whole``, else bfloat16 in float32."""
    if not FF_AMX <= isa < FF_ISAS or not ff_isa_usable(isa):
        raise ValueError(f"instruction set {isa} has no tiles that can be used on this machine")
    if {(a.shape[0], a.shape[1]), (b.shape[0], b.shape[1]), (c.shape[0], c.shape[1])} != {(16, 64)}:
        raise ValueError("a tile has 16 rows of 64 bytes")
    ff_try_tile(isa, whole, &a[0, 0], &b[0, 0], &c[0, 0])


def attend_head(
    int isa, int format, const float[:, ::1] qkv, float[:, ::1] out, int64_t window, const float[::1] bias, *,
    bint half=False,
):
    """Attention of one head of one text, in place: qkv (T, 3 size) -> out (T, size), summed in float32 or int32.

    ``format`` is one of ``attention_formats(isa)``; if it is not FLOAT, qkv is rounded to bfloat16 first, and with
    ``half`` the results too; ``window`` and ``bias`` (2 (reach + BIAS_MARGIN) + 1,), or None, as in ``c/encoder/encoder.h``.
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


cdef class Encoder:
    """An encoder that is laid out for one instruction set. Immutable, so safe from several threads at once.

    memory: uint8, its first element 64-byte aligned; linears (n,) of ``LINEAR_FIELDS``, steps (n, STEP_NUMBERS)
    int64, each a record of ``STEPS``, and strides (n,) int64, as in ``c/encoder/encoder.h``; positions (position_rows, E)
    float32, a row more if a step of EMBED has ``mean``, or None; words (vocabulary, E) float32, or uint16 with the bits of
    float16; token_weights (vocabulary,) float32, or None: every token has weight 1.
    """

    cdef ff_encoder encoder
    cdef object keep_alive

    def __cinit__(
        self, const unsigned char[::1] memory, const ff_linear[::1] linears, const int64_t[:, ::1] steps,
        const int64_t[::1] strides, const float[:, ::1] positions, words, const float[::1] token_weights, *,
        int heads, int head, int hidden, int outputs, int position_rows, int position_start, int pad_id, int layers,
        float eps, int isa,
    ):
        cdef const float[:, ::1] singles
        cdef const unsigned short[:, ::1] halves
        if steps.shape[0] == 0 or not 1 <= strides.shape[0] <= FF_BUFFERS:
            raise ValueError(f"a packed encoder needs steps and 1 to {FF_BUFFERS} buffers")
        if steps.shape[1] != STEP_NUMBERS:
            raise ValueError(f"a step has {STEP_NUMBERS} numbers, not {steps.shape[1]}")
        cdef const ff_step *step = <const ff_step *>&steps[0, 0]
        if any(not 0 <= step[i].kind < FF_STEP_KINDS for i in range(steps.shape[0])):
            raise ValueError(f"a step has a kind from 0 to {FF_STEP_KINDS - 1}")
        if <uintptr_t>&memory[0] % 64:
            raise ValueError("the memory of a packed encoder must be 64-byte aligned")
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        attended = attention_formats(isa)
        if any(linears[i].format not in formats(isa) for i in range(linears.shape[0])):
            raise ValueError(f"a product's format cannot be computed on instruction set {isa} here")
        rounding = (FF_BF16, FF_INT8, FF_INT8_TILES) if isa >= FF_AVX512 else ()
        if any(linears[i].result == FF_BF16 and linears[i].format not in rounding for i in range(linears.shape[0])):
            raise ValueError(f"a product's results cannot be bfloat16 on instruction set {isa} in its format")
        if any(step[i].kind in (FF_PACK, FF_ATTEND) and step[i].attend.format not in attended for i in range(steps.shape[0])):
            raise ValueError(f"attention's format cannot be computed on instruction set {isa} here")
        if words.shape[0] == 0 or position_rows < 1:
            raise ValueError("an encoder needs words and positions")
        rows = position_rows + any(step[i].kind == FF_EMBED and step[i].embed.mean for i in range(steps.shape[0]))
        if positions is not None and (words.shape[1] != positions.shape[1] or positions.shape[0] != rows):
            raise ValueError(f"the table of positions must have {rows} rows, as wide as those of words")
        if token_weights is not None and token_weights.shape[0] != words.shape[0]:
            raise ValueError(f"{token_weights.shape[0]} token weights do not fit {words.shape[0]} words")
        if words.itemsize == 2:
            halves = words
            self.encoder.words = &halves[0, 0]
        else:
            singles = words
            self.encoder.words = &singles[0, 0]
        self.keep_alive = (memory, linears, steps, strides, positions, words, token_weights)
        self.encoder.memory = <const char *>&memory[0]
        self.encoder.linears = &linears[0] if linears.shape[0] else NULL
        self.encoder.steps, self.encoder.count = step, <int32_t>steps.shape[0]
        self.encoder.strides, self.encoder.buffers = &strides[0], <int32_t>strides.shape[0]
        self.encoder.positions = NULL if positions is None else &positions[0, 0]
        self.encoder.position_rows = position_rows
        self.encoder.token_weights = NULL if token_weights is None else &token_weights[0]
        self.encoder.half, self.encoder.vocabulary = words.itemsize == 2, <int32_t>words.shape[0]
        self.encoder.heads, self.encoder.head, self.encoder.hidden = heads, head, hidden
        self.encoder.outputs = outputs
        self.encoder.position_start, self.encoder.pad_id = position_start, pad_id
        self.encoder.layers, self.encoder.eps, self.encoder.isa = layers, eps, isa

    def run(
        self, const int32_t[::1] ids, const int64_t[::1] offsets, float[:, ::1] pooled, states, int threads,
        int64_t skip=0,
    ):
        """Write pooled (B, P) and, unless None, states (wanted layers, N, D) of ids (N,) and offsets (B + 1,).

        Sums are float32, those of products of bytes int32. Pooling leaves out the first ``skip`` tokens of every text.
        """
        cdef ff_texts texts
        cdef float[:, :, ::1] kept
        cdef int64_t bad
        cdef int failed
        texts.texts = offsets.shape[0] - 1
        if texts.texts < 0 or offsets[0] != 0 or offsets[texts.texts] != ids.shape[0]:
            raise ValueError("offsets must start at 0 and end at the number of ids")
        if skip < 0:
            raise ValueError(f"skip must be at least 0, not {skip}")
        if pooled.shape[0] != texts.texts or pooled.shape[1] != self.encoder.outputs:
            raise ValueError(f"pooled must be {(texts.texts, self.encoder.outputs)}, not {pooled.shape[0], pooled.shape[1]}")
        if texts.texts == 0:
            return
        texts.offsets, texts.pooled, texts.states, texts.skip = &offsets[0], &pooled[0, 0], NULL, skip
        if ids.shape[0] == 0:
            raise ValueError("text 0 has no tokens, too many, or an id outside the vocabulary")
        texts.ids = &ids[0]
        if states is not None:
            kept = states
            if (kept.shape[0], kept.shape[1], kept.shape[2]) != (self.encoder.layers, ids.shape[0], self.encoder.hidden):
                raise ValueError("states must be (wanted layers, N, D)")
            texts.states = &kept[0, 0, 0]
        with nogil:
            bad = ff_check_texts(&self.encoder, &texts)
            failed = 0 if bad >= 0 else ff_encoder_run(&self.encoder, &texts, threads)
        if bad >= 0:
            raise ValueError(f"text {bad} has no tokens, too many, or an id outside the vocabulary")
        if failed:
            raise MemoryError("no memory for the scratch space of the encoder")


cdef extern from "gemm/packing.h":
    enum: FF_LARGEST
    enum: FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16, FF_STORED_KINDS
    enum: FF_PARTS
    int ff_stored_size(int stored)
    ctypedef struct ff_matrix:
        const char *parts[3]
        const int32_t *rows
        int64_t part_rows, columns, height, groups, padded, lanes, spare
        char *panels
        float *scale
        int32_t *shift
        int32_t zero, stored
        float factor
        const float *by
    int ff_pack(const ff_matrix *, int64_t, int, int32_t *, int) nogil
    int32_t ff_convert(const char *, int, int64_t, void *, int, int) nogil


LARGEST_BITS = FF_LARGEST  # of panels.LARGEST as float32
STORED_FLOAT, STORED_HALF, STORED_BF16 = FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16


def convert(const unsigned char[::1] source, int stored, target, bint half, int threads):
    """Write the numbers in the bytes of ``source``, stored as ``stored``, to the bytes of ``target`` as float32 or half.

    Returns the bits of the largest magnitude as float32, at least 0x7f800000 for infinity or NaN. ``target`` None: write
    nothing.
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
    """Fill ``memory`` with ``matrices`` (``panels.Matrix``) in panels of ``panel`` rows; without matrices do nothing.

    Returns [(matrix, part)] of the parts that hold NaN, infinity or magnitudes above ``panels.LARGEST``. Raises
    ValueError for matrices that do not fit.
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
            m[i].zero, m[i].stored, m[i].factor, m[i].spare = given.zero, given.stored, given.factor, given.spare
            if (
                not 0 <= m[i].stored < FF_STORED_KINDS or m[i].lanes not in (1, 2, 4) or m[i].groups < 1
                or m[i].part_rows < 1 or m[i].spare < 0 or m[i].columns < 1 or m[i].columns % m[i].groups
                or m[i].padded < m[i].columns // m[i].groups or not 1 <= len(given.parts) <= FF_PARTS
            ):
                raise ValueError(f"matrix {i} cannot be packed as it is described")
            inner = m[i].groups * m[i].padded
            steps = inner // m[i].lanes + m[i].spare
            if inner % m[i].lanes or rows.shape[0] == 0 or rows.shape[0] % panel:
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
    """Write DOTS or HAMMINGS of the bytes of codes (n, width) and of query (width,) to out (n,), exact in int32."""
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
    """A table of token vectors, as in ``c/table/table.h``. Immutable, so safe from several threads at once.

    rows: the bytes of (R, width) numbers of the kind ``stored``, not copied; scales, weights: (V,) float32 or None;
    mapping: (V,) int32, each 0 to R - 1, or None, if V is R; run: tokens that are summed before they are added up.
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


cdef extern from "tokens/tokens.h":
    enum: FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
    enum: FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_FENCE
    enum: FF_LONGEST, FF_EACH
    enum: FF_CUT, FF_HALF
    enum: FF_READ, FF_NO_MEMORY
    enum: FF_FIRST_PIECE, FF_LATER_PIECE
    enum: FF_SLACK
    ctypedef struct ff_vocabulary:
        int64_t count
        int32_t largest
    ctypedef struct ff_added:
        const uint8_t *letters
        int32_t length, id
    ctypedef struct ff_wordpiece:
        const ff_vocabulary *words
        const ff_added *added
        const int32_t *before
        const int32_t *after
        int32_t added_count, before_count, after_count, steps, longest, unknown
    ctypedef struct ff_text:
        const void *letters
        int64_t length
        int32_t width
    int ff_read_vocabulary(ff_vocabulary *, const uint8_t *, int64_t, int64_t *) nogil
    void ff_free_vocabulary(ff_vocabulary *)
    int32_t ff_find(const ff_vocabulary *, const uint8_t *, int64_t, int)
    void ff_prepare_ascii(ff_wordpiece *)
    int ff_character(int32_t, int32_t *, int32_t *)
    int32_t *ff_tokenize_all(
        const ff_wordpiece *, const ff_text *, int64_t, int64_t, int, int64_t *, int64_t *, int8_t *, int) nogil


CLEAN, IDEOGRAPHS, STRIP, LOWER, LOWER_FIRST = FF_CLEAN, FF_IDEOGRAPHS, FF_STRIP, FF_LOWER, FF_LOWER_FIRST
CONTROL, WHITE, PUNCTUATION, IDEOGRAPH, FENCE = FF_CONTROL, FF_WHITE, FF_PUNCTUATION, FF_IDEOGRAPH, FF_FENCE
LONGEST, CUT, HALF = FF_LONGEST, FF_CUT, FF_HALF


cdef extern from "Python.h":
    int PyUnicode_KIND(object) noexcept
    const void *PyUnicode_DATA(object) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object) noexcept


cdef int _fill(ff_text *given, list texts) except -1:
    """Point ``given`` at the letters of ``texts``; raises TypeError for what is no str."""
    cdef int64_t i
    for i in range(len(texts)):
        text = texts[i]
        if not isinstance(text, str):
            raise TypeError(f"text {i} is {type(text).__name__}, not str")
        given[i].letters, given[i].length = PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
        given[i].width = PyUnicode_KIND(text)
    return 0


def character(int c):
    """(flags, canonical class, lower case, what it is without accents) of code point c, as ``c/tokens/unicode.h`` has it."""
    cdef int32_t row[3]
    cdef int32_t split[FF_EACH]
    if not 0 <= c < 0x110000:
        raise ValueError(f"{c} is no code point")
    cdef int count = ff_character(c, row, split)
    return row[0], row[1], row[2], tuple([split[i] for i in range(count)])


cdef class Vocabulary:
    """The JSON object of pieces and ids that begins at ``start`` of the bytes ``json``; ``end``: the place after it.

    Raises ValueError if there is none: strict JSON of ids below 2^31. Of a piece that comes twice the last id counts.
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
        """The largest id of a piece."""
        return self.words.largest

    def get(self, str piece):
        """The id of a piece that begins a word; None if there is none."""
        cdef bytes letters = piece.encode()
        cdef bytes padded = letters + bytes(FF_SLACK)
        cdef int32_t found = ff_find(&self.words, padded, len(letters), FF_FIRST_PIECE) if letters else -1
        return None if found < 0 else found


cdef class WordPiece:
    """A vocabulary and its rules. Immutable, so safe from several threads at once; ``kernels/tokens/cpu.py`` checks them.

    added: (bytes, id) of ASCII, longest first; before, after: int32.
    """

    cdef ff_wordpiece w
    cdef ff_added *added
    cdef object keep_alive

    def __cinit__(
        self, Vocabulary vocabulary, int steps, int unknown, int longest, list added,
        const int32_t[::1] before, const int32_t[::1] after,
    ):
        cdef bytes content
        if not 0 <= longest <= FF_LONGEST:
            raise ValueError(f"a word of {longest} letters is cut into pieces, and {FF_LONGEST} is the most here")
        self.added = <ff_added *>calloc(max(len(added), 1), sizeof(ff_added))
        if self.added == NULL:
            raise MemoryError("no memory for the added tokens")
        for i, (content, number) in enumerate(added):
            if not content or not content.isascii():
                raise ValueError("an added token is empty or has other letters than those of ASCII")
            self.added[i].letters, self.added[i].length, self.added[i].id = content, <int32_t>len(content), number
        self.keep_alive = (vocabulary, added, before, after)
        self.w.words = &vocabulary.words
        self.w.added, self.w.added_count = self.added, <int32_t>len(added)
        self.w.before_count, self.w.after_count = <int32_t>before.shape[0], <int32_t>after.shape[0]
        self.w.before = &before[0] if before.shape[0] else NULL
        self.w.after = &after[0] if after.shape[0] else NULL
        self.w.steps, self.w.longest, self.w.unknown = steps, longest, unknown
        ff_prepare_ascii(&self.w)

    def __dealloc__(self):
        free(self.added)

    def tokenize(self, list texts, int64_t limit, bint special, int threads):
        """(ids int32, offsets int64, states int8: FF_WHOLE, FF_CUT or FF_HALF) of ``texts``, which are str."""
        cdef int64_t many = len(texts), i
        if limit < (self.w.before_count + self.w.after_count if special else 0):
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        offsets, states = np.zeros(many + 1, np.int64), np.zeros(many, np.int8)
        if many == 0:
            return np.empty(0, np.int32), offsets, states
        cdef int64_t[::1] to = offsets
        cdef int8_t[::1] state = states
        cdef int64_t[::1] starts = np.empty(many, np.int64)
        cdef int32_t *found = NULL
        cdef int32_t[::1] ids
        cdef ff_text *given = <ff_text *>calloc(many, sizeof(ff_text))
        if given == NULL:
            raise MemoryError("no memory for the texts")
        try:
            _fill(given, texts)
            with nogil:
                found = ff_tokenize_all(&self.w, given, many, limit, special, &starts[0], &to[1], &state[0], threads)
            if found == NULL:
                raise MemoryError("no memory for the ids of the texts")
            np.cumsum(offsets, out=offsets)
            out = np.empty(offsets[many], np.int32)
            ids = out
            for i in range(many):
                if to[i + 1] > to[i]:
                    memcpy(&ids[to[i]], found + starts[i], (to[i + 1] - to[i]) * sizeof(int32_t))
            return out, offsets, states
        finally:
            free(given)
            free(found)


cdef extern from "embed/embed.h":
    enum: FF_NO_ROW
    ctypedef struct ff_embedder:
        const ff_wordpiece *words
        const ff_table *table
        const ff_encoder *encoder
        const ff_flow *flow
        int64_t limit
        int32_t special, left_out
    int ff_embed(const ff_embedder *, const ff_text *, int64_t, float *, int8_t *, int, int) nogil


cdef class Embedder:
    """Texts to embeddings, as in ``c/embed/embed.h``. Immutable, so safe from several threads at once.

    pooling: a Table, or an Encoder without layers; left_out: an id, or -1.
    """

    cdef ff_embedder embedder
    cdef object keep_alive

    def __cinit__(self, WordPiece words, pooling, Flow flow, int64_t limit, bint special, int left_out):
        cdef Table table = pooling if isinstance(pooling, Table) else None
        cdef Encoder encoder = pooling if isinstance(pooling, Encoder) else None
        cdef int64_t width
        if table is not None:
            self.embedder.table, width = &table.table, table.table.width
        elif encoder is not None:
            self.embedder.encoder, width = &encoder.encoder, encoder.encoder.outputs
        else:
            raise ValueError("a pooling is a Table or an Encoder")
        if width != flow.flow.inputs:
            raise ValueError(f"the pooling has {width} numbers, and the flow takes {flow.flow.inputs}")
        if limit < (words.w.before_count + words.w.after_count if special else 0):
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        self.keep_alive = (words, pooling, flow)
        self.embedder.words, self.embedder.flow = &words.w, &flow.flow
        self.embedder.limit, self.embedder.special, self.embedder.left_out = limit, special, left_out

    def run(self, list texts, float[:, ::1] out, bint normalize, int threads):
        """Write the embeddings of ``texts``, which are str, to out (B, N). The number of those that were cut, or -1: one
        has half a surrogate pair or an id without a row, and out is of no use.
        """
        cdef int64_t many = len(texts), i, cut = 0
        cdef int failed
        if out.shape[0] != many or out.shape[1] != self.embedder.flow.outputs:
            raise ValueError(f"out must be {(many, self.embedder.flow.outputs)}, not {out.shape[0], out.shape[1]}")
        if many == 0:
            return 0
        cdef float *to = &out[0, 0]
        cdef ff_text *given = <ff_text *>malloc(many * (sizeof(ff_text) + 1))
        if given == NULL:
            raise MemoryError("no memory for the texts")
        cdef int8_t *states = <int8_t *>(given + many)
        try:
            _fill(given, texts)
            memset(states, 0, many)
            with nogil:
                failed = ff_embed(&self.embedder, given, many, to, states, normalize, threads)
            if failed:
                raise MemoryError("no memory to embed the texts")
            for i in range(many):
                if states[i] == FF_HALF or states[i] == FF_NO_ROW:
                    return -1
                cut += states[i] == FF_CUT
            return cut
        finally:
            free(given)
