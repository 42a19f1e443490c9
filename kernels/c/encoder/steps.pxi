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
        const float *scales
        const float *token_weights
        int32_t half, count, buffers, heads, head, hidden, outputs, position_start, pad_id, vocabulary, position_rows
        int32_t layers, isa
        float eps
    ctypedef struct ff_texts:
        const int32_t *ids
        const int64_t *offsets
        const int64_t *seconds
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
    int ff_steps_together(int isa, int format)
    void ff_switch_tiles(int isa, int on) nogil
    void ff_try_tile(int isa, int whole, const void *a, const void *b, void *c)
    void ff_trim()


EMBED, LINEAR, ATTEND, NORM = FF_EMBED, FF_LINEAR, FF_ATTEND, FF_NORM
ROTATE, GLU, PACK = FF_ROTATE, FF_GLU, FF_PACK
POOL, FIRST, CONVERT, UNIT, MAP, OUTPUT = FF_POOL, FF_FIRST, FF_CONVERT, FF_UNIT, FF_MAP, FF_OUTPUT
MEAN, MEAN_SQRT, POSITION_MEAN = FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN
LARGEST_OF, FIRST_TOKEN, LAST_TOKEN = FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN
MAPS = {  # activation -> number in a MAP step
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
STEPS = {  # kind of step -> its struct, all int64
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
STEP_NUMBERS = sizeof(ff_step) // sizeof(int64_t)  # int64 in a step; shorter structs end in zeros
