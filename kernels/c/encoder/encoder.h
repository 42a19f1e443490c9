/* The encoder: a list of steps over all tokens of a call, without padding between texts. encoder/cpu_layers.py builds
   it. Widths are padded with zeros to whole panels. */
#ifndef FASTFLOW_ENCODER_H
#define FASTFLOW_ENCODER_H

#include "gemm/gemm.h"

enum { FF_BUFFERS = 16 };  /* an encoder with every option has 13 */
#define FF_THREAD_ROWS 48  /* with this many rows per thread, threads split rows instead of panels */
#define FF_SCORES_SPARE 16  /* floats between rows of scores, so that rows use different cache sets */
/* Attention's keys in a block and queries in an element: 14 rows of scores fill 30 KB of a 48 KB L1. */
enum { FF_KEYS = 512, FF_QUERIES = 192 };
enum { FF_TILE_QUERIES = 32 };  /* most queries in a tile: two AMX tiles */
enum { FF_BYTES_FROM = 64 };  /* tokens from which int8 attention is faster */
#define FF_BIAS_MARGIN 16  /* copies of a head's first bias before its biases, and of the last after */
enum {
    FF_EMBED, FF_LINEAR, FF_PACK, FF_ATTEND, FF_NORM, FF_CONVERT, FF_ROTATE, FF_GLU, FF_POOL, FF_FIRST, FF_UNIT, FF_MAP, FF_OUTPUT,
    FF_STEP_KINDS
};
enum { FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN, FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN };  /* modes of FF_POOL */
enum {  /* FF_MAP: activations as in torch.nn, with default arguments */
    FF_MAP_IDENTITY, FF_MAP_TANH, FF_MAP_RELU, FF_MAP_GELU, FF_MAP_SIGMOID, FF_MAP_SILU, FF_MAP_ELU, FF_MAP_LEAKY_RELU,
    FF_MAP_SOFTPLUS, FF_MAP_SOFTSIGN, FF_MAP_RELU6, FF_MAP_HARDTANH, FF_MAP_MISH
};

void ff_trim(void);

/* Steps: all fields are int64.
     source, target  indices of buffers; without source, target is changed in place (FF_EMBED sets it)
     texts           1: one row per text; 0: one row per token
     width           columns without padding; FF_CONVERT and FF_GLU: with padding
     scale, bias ... byte offsets of float32 vectors in the encoder's memory */
typedef struct {
    int64_t kind, target, width, scale, bias;
    int64_t mean;        /* 1: every token gets the mean of all position embeddings */
} ff_embed_step;
typedef struct {
    int64_t kind, source, target, texts;
    int64_t product;     /* index into the encoder's `linears` */
    int64_t activation;
    int64_t add;         /* buffer added to the result, or -1 */
} ff_linear_step;
typedef struct {         /* FF_ATTEND, and FF_PACK before it */
    int64_t kind, source, target;
    int64_t format, result;  /* formats of the operands, and of `target` (FF_BF16 or FF_FLOAT) */
    int64_t window;      /* most tokens between query and key; < 0: no limit */
    int64_t biases;      /* offset of each head's biases, as in ff_head; < 0: none */
    int64_t reach;       /* largest distance with a bias of its own */
} ff_attend_step;
typedef struct {
    int64_t kind, source, target, texts, width, scale, bias;
    int64_t eps;         /* offset of one float32; < 0: use the encoder's */
} ff_norm_step;
typedef struct {
    int64_t kind, source, target, width;
    int64_t format;      /* FF_BF16 or a byte format */
    int64_t factors;     /* byte formats: offset of float32 factors (width); < 0: none */
    int64_t apart;       /* byte formats: offset of int32 (FF_APART), columns kept in float32; < 0: none */
} ff_convert_step;
typedef struct {
    int64_t kind, target;
    int64_t table;       /* offset of (positions, head): cosines, then sines */
} ff_rotate_step;
typedef struct { int64_t kind, target, width, activation; } ff_glu_step;
typedef struct {
    int64_t kind, source;
    int64_t target;      /* -1: the caller's pooled vectors */
    int64_t width, slot; /* slot: the layer's index among the wanted `layers` */
    int64_t mode;
    int64_t column;      /* first column written */
    int64_t share;       /* offset of one float32, the layer's weight in the sum */
    int64_t first;       /* 1: overwrite the target; 0: add to it */
} ff_pool_step;
typedef struct { int64_t kind, source, target, width, slot; } ff_first_step;
typedef struct { int64_t kind, target, width; } ff_unit_step;
typedef struct {
    int64_t kind, target, width;
    int64_t activation;
    int64_t add;
} ff_map_step;
typedef struct { int64_t kind, source, width; } ff_output_step;  /* copies rows to the caller's pooled vectors */
typedef union {
    int64_t kind;
    ff_embed_step embed;
    ff_linear_step linear;
    ff_attend_step attend;
    ff_norm_step norm;
    ff_convert_step convert;
    ff_rotate_step rotate;
    ff_glu_step glu;
    ff_pool_step pool;
    ff_first_step first;
    ff_unit_step unit;
    ff_map_step map;
    ff_output_step output;
} ff_step;

typedef struct {
    const char *memory;
    const ff_linear *linears;
    const ff_step *steps;
    const int64_t *strides;   /* bytes in a row of each buffer, a multiple of 64 */
    /* (position_rows, width) plus the embedding of segment 0; then a row, their mean, if FF_EMBED needs it, or as many
       rows plus the embedding of segment 1, if texts have `seconds`; or NULL */
    const float *positions;
    const void *words;        /* (vocabulary, width) */
    const float *scales;      /* (vocabulary): words are int8, times these; NULL: see `half` */
    const float *token_weights;  /* (vocabulary), for pooling; NULL: all 1 */
    int32_t half;             /* 1: words are IEEE half; 0: float32 */
    int32_t count, buffers;
    int32_t heads, head;      /* head: columns of one head, with padding */
    int32_t hidden, outputs;  /* columns of states and pooled vectors */
    int32_t position_start, pad_id;  /* tokens with pad_id get position pad_id; others count from position_start */
    int32_t vocabulary, position_rows;  /* position_rows also limits the tokens of a text */
    int32_t layers;
    int32_t isa;
    float eps;
} ff_encoder;

typedef struct {
    const int32_t *ids;      /* (N) */
    const int64_t *offsets;  /* (texts + 1) starts of texts in `ids` */
    int64_t texts;
    int64_t skip;            /* first tokens of each text that are not pooled */
    const int64_t *seconds;  /* (texts) tokens of segment 0, before those of segment 1; NULL: all are of segment 0 */
    float *pooled;           /* (texts, outputs) */
    float *states;           /* (layers, N, hidden), or NULL */
} ff_texts;

/* Write pooled vectors and hidden states of texts that passed ff_check_texts; other texts and threads change no bits.
   Returns -1 if memory is short. */
int ff_encoder_run(const ff_encoder *encoder, const ff_texts *texts, int threads);
/* Returns the first text that is empty, too long or has an unknown id, else -1. */
int64_t ff_check_texts(const ff_encoder *encoder, const ff_texts *texts);

typedef struct {         /* one head of one text */
    const char *q;       /* (tokens, 3 size) [q, k, v] in float32 or bfloat16, rows ldq bytes apart */
    ptrdiff_t ldq, ldout;
    int64_t tokens, window, reach;
    /* biases by distance key - query = -reach ... reach, with FF_BIAS_MARGIN copies at both ends; NULL: none */
    const float *bias;
    char *out;           /* (tokens, size), rows ldout bytes apart */
    int half;            /* 1: `out` is bfloat16; 0: float32 */
    int size;            /* columns of a head, with padding */
} ff_head;

typedef struct {
    void (*pack_keys)(const ff_head *, float *keys);  /* keys (ff_keys_floats): packed keys and values */
    /* Write softmax(Q K^T + bias) V of queries [from, to), at most FF_QUERIES. keys (ff_keys_floats), scratch
       (ff_attention_floats). */
    void (*attend)(const ff_head *, int64_t from, int64_t to, const float *keys, float *scratch);
} ff_attention;
/* Attention in FF_FLOAT, FF_BF16 or FF_INT8; NULL if this machine cannot run it. */
const ff_attention *ff_find_attention(int isa, int format);
const ff_attention *ff_attention_of(int isa, int format);  /* as ff_find_attention; NULL also if its self-test failed */

typedef struct {
    /* y = LayerNorm(x); y may be x. All (width), padded with zeros. */
    void (*norm)(const float *x, float *y, int64_t width, const float *scale, const float *bias, float eps);
    /* x (width, padded with zeros) = word embedding + position embedding. */
    void (*embed)(const ff_encoder *, int32_t id, int32_t position, int64_t width, float *x);
    /* to (width) = (if `first`) or += share / divisor * sum of weights[t] x[t]. x (tokens, width; rows ldx floats
       apart), weights (tokens). */
    void (*pool)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float divisor,
                 float share, int first, float *to);
    /* to (width) = columnwise maximum of weights[t] x[t]; NaN if any x is not finite. */
    void (*largest)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float *to);
    /* Convert x (columns) to `format`. FF_BF16: to (columns). Byte formats: to (columns) encodes x times `by` (columns;
       NULL: 1). Its float32 scale follows, then columns `apart` (FF_APART; NULL: none) in float32; `by` is 0 there. */
    void (*convert)(const float *x, const float *by, const int32_t *apart, int64_t columns, int format, char *to);
    /* Rotate q and k of x (heads, 3, head) in place, channel i with i + head / 2. table (head): cosines, then sines. */
    void (*rotate)(float *x, int heads, int head, const float *table);
    /* x[0:width] = activation(x[0:width]) * x[width:2 width] */
    void (*glu)(float *x, int64_t width, int activation);
} ff_body;
const ff_body *ff_body_of(int isa);

/* x (width) /= max(|x|, 1e-12). Squares are summed in float64. */
void ff_normalise_row(float *x, int64_t width);
/* x (width) = activation(x) + add (width, or NULL). */
void ff_activate_row(int64_t activation, float *x, int64_t width, const float *add);

typedef struct {  /* neighbouring texts; `row`: their first token in the call */
    int64_t text, texts, row, rows;
    char *at[FF_BUFFERS];
    float *keys;  /* packed keys that threads share (ff_shared_floats), or NULL */
} ff_group;

typedef struct {
    const ff_encoder *e;
    const ff_texts *in;
    const ff_body *body;
} ff_call;
/* Count the elements of a step, the smallest parts that threads share: panels of weights, rows, texts, or a head's block of
   queries. */
int64_t ff_step_elements(const ff_call *, const ff_step *, const ff_group *);
/* Compute elements [from, to) of a step. scratch: (ff_attention_floats + ff_keys_floats). */
void ff_run_step(const ff_call *, const ff_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
/* Pool x (tokens, width; rows ldx floats apart) of one text to `to` (width). weights (tokens) is scratch. */
void ff_pool(const ff_call *, const ff_pool_step *, int64_t text, const float *x, ptrdiff_t ldx, float *weights, float *to);

typedef struct {         /* how a call's work is divided */
    int64_t alone;       /* texts [0, alone) form groups that one thread runs, of up to `limit` tokens */
    int64_t limit;
    int64_t end;         /* estimated time, in tokens that one thread computes */
    int64_t count, rows; /* groups of one thread, and the most tokens in one */
    int64_t shared, shared_rows;  /* the same for groups that threads share */
} ff_shares;
/* Choose the division estimated as fastest. longest: tokens of the longest text, at least 1. */
ff_shares ff_share_texts(const ff_texts *in, int64_t longest, int isa, int threads);
/* Cut texts into groups: set their counts and rows; fill `groups` unless NULL. */
void ff_cut_groups(const ff_texts *in, ff_shares *, ff_group *groups);

size_t ff_keys_floats(int64_t tokens, int head, int vector);
size_t ff_attention_floats(int64_t tokens, int head, int vector);  /* attend's scratch, without keys */
/* Floats of packed keys in a shared group of `rows` tokens. */
size_t ff_shared_floats(const ff_encoder *, int64_t rows);
/* ff_step_elements and ff_run_step of FF_ATTEND and FF_PACK. */
int64_t ff_attend_elements(const ff_call *, const ff_attend_step *, const ff_group *);
void ff_attend(const ff_call *, const ff_attend_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
extern const ff_attention ff_attention_portable, ff_attention_neon, ff_attention_avx2, ff_attention_avx512, ff_attention_avx512_bf16,
    ff_attention_avx512_vnni, ff_attention_amx, ff_attention_amx_emulated;
extern const ff_body ff_body_portable, ff_body_neon, ff_body_avx2, ff_body_avx512;

#endif
