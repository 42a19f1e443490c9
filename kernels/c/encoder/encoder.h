/* The encoder as a list of steps over all tokens of a call, without padding between texts; encoder/cpu_layers.py
   builds it. Widths are padded with zeros to whole panels. */
#ifndef FASTFLOW_ENCODER_H
#define FASTFLOW_ENCODER_H

#include "gemm/gemm.h"

enum { FF_BUFFERS = 16 };  /* the most; a full encoder has 13 */
#define FF_THREAD_ROWS 48  /* rows per thread, above which reading weights beats exchanging rows */
#define FF_SCORES_SPARE 16  /* floats between rows of scores: power-of-two strides share cache sets */
/* 14 rows of scores (an AVX-512 tile) are 30 KB of a 48 KB L1, and a BERT text is one block. Results of 192 queries
   are 48 KB for heads of 64 columns. */
enum { FF_KEYS = 512, FF_QUERIES = 192 };
enum { FF_TILE_QUERIES = 32 };  /* two AMX tiles; the most of any instruction set */
enum { FF_BYTES_FROM = 64 };  /* tokens; for shorter texts packing bytes costs all that it saves */
#define FF_BIAS_MARGIN 16  /* copies of the first and last bias around a head's biases */
enum {
    FF_EMBED, FF_LINEAR, FF_PACK, FF_ATTEND, FF_NORM, FF_CONVERT, FF_ROTATE, FF_GLU, FF_POOL, FF_FIRST, FF_UNIT, FF_MAP, FF_OUTPUT,
    FF_STEP_KINDS
};
enum { FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN, FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN };  /* modes of FF_POOL */
enum {  /* FF_MAP, as torch.nn without arguments */
    FF_MAP_IDENTITY, FF_MAP_TANH, FF_MAP_RELU, FF_MAP_GELU, FF_MAP_SIGMOID, FF_MAP_SILU, FF_MAP_ELU, FF_MAP_LEAKY_RELU,
    FF_MAP_SOFTPLUS, FF_MAP_SOFTSIGN, FF_MAP_RELU6, FF_MAP_HARDTANH, FF_MAP_MISH
};

void ff_trim(void);  /* return freed memory to the system */

/* A step: `kind`, then that kind's fields, int64.
     source, target  buffers; without source the target is changed in place
     texts           1: rows per text instead of per token
     width           true columns; FF_CONVERT and FF_GLU: padded ones
     scale, bias ... byte offsets of float32 vectors in memory */
typedef struct {
    int64_t kind, target, width, scale, bias;
    int64_t mean;        /* 1: the extra row of positions for every token */
} ff_embed_step;
typedef struct {
    int64_t kind, source, target, texts;
    int64_t product;     /* index into the encoder's `linears` */
    int64_t activation;  /* FF_LINEAR_ONLY ... */
    int64_t add;         /* buffer added to the result, or -1 */
} ff_linear_step;
typedef struct {         /* FF_ATTEND, and the FF_PACK before it */
    int64_t kind, source, target;
    int64_t format, result;  /* of attention; of `target`: FF_BF16 or FF_FLOAT */
    int64_t window;      /* farthest key; < 0: any */
    int64_t biases;      /* each head's biases, as in ff_head; < 0: none */
    int64_t reach;       /* the largest distance with its own bias */
} ff_attend_step;
typedef struct {
    int64_t kind, source, target, texts, width, scale, bias;
    int64_t eps;         /* one float32; < 0: the encoder's */
} ff_norm_step;
typedef struct {
    int64_t kind, source, target, width;
    int64_t format;      /* FF_BF16, or a byte format */
    int64_t factors;     /* bytes only: a float32 per padded column; < 0: none */
    int64_t apart;       /* bytes only: int32 indices of FF_APART columns; < 0: none */
} ff_convert_step;
typedef struct {
    int64_t kind, target;
    int64_t table;       /* [cosines | sines], `head` float32 per position */
} ff_rotate_step;
typedef struct { int64_t kind, target, width, activation; } ff_glu_step;
typedef struct {
    int64_t kind, source;
    int64_t target;      /* -1: the caller's pooled vectors */
    int64_t width, slot; /* slot: index of the wanted layer */
    int64_t mode;        /* FF_MEAN ... */
    int64_t column;      /* first column in the target */
    int64_t share;       /* one float32, the layer's share */
    int64_t first;       /* 1: set the sum; 0: add to it */
} ff_pool_step;
typedef struct { int64_t kind, source, target, width, slot; } ff_first_step;  /* each text's first row */
typedef struct { int64_t kind, target, width; } ff_unit_step;
typedef struct {
    int64_t kind, target, width;
    int64_t activation;  /* FF_MAP_IDENTITY ... */
    int64_t add;         /* buffer added to the result, or -1 */
} ff_map_step;
typedef struct { int64_t kind, source, width; } ff_output_step;  /* rows of texts to the caller's pooled vectors */
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
    const int64_t *strides;   /* bytes in a row of each buffer, multiples of 64 */
    const float *positions;   /* (position rows, embedding width), the embedding of segment 0 added; one more row, the
                                 mean of all, if FF_EMBED leaves positions out; NULL: the model has none */
    const void *words;        /* (vocabulary, width) */
    const float *token_weights;  /* (vocabulary), 0 or 1e-30 to 1e30, for FF_POOL; NULL: all 1 */
    int32_t half;             /* 1: words are IEEE half; 0: float32 */
    int32_t count, buffers;
    int32_t heads, head;      /* head: padded columns of one head */
    int32_t hidden, outputs;  /* true columns of states and pooled vectors */
    int32_t position_start, pad_id;  /* pad_id -1: every token is numbered */
    int32_t vocabulary, position_rows;  /* position_rows without a table: most tokens of a text */
    int32_t layers;           /* wanted layers, which are averaged */
    int32_t isa;
    float eps;
} ff_encoder;

typedef struct {
    const int32_t *ids;      /* (N) */
    const int64_t *offsets;  /* (texts + 1) */
    int64_t texts;
    int64_t skip;            /* first tokens that pooling leaves out */
    float *pooled;           /* (texts, outputs) */
    float *states;           /* (layers, N, hidden), or NULL */
} ff_texts;

/* Texts that passed ff_check_texts -> pooled vectors and hidden states. A text's bits do not depend on other texts,
   order or threads. Returns -1 if memory is short, else 0. */
int ff_encoder_run(const ff_encoder *encoder, const ff_texts *texts, int threads);
/* The first text without tokens, with too many, or with an unknown id; -1: none. */
int64_t ff_check_texts(const ff_encoder *encoder, const ff_texts *texts);

typedef struct {         /* one head of one text */
    const char *q;       /* (tokens, 3 size): [q|k|v], float32 or, for reduced formats, bfloat16; rows ldq bytes
                            apart */
    ptrdiff_t ldq, ldout;
    int64_t tokens, window, reach;
    const float *bias;   /* biases by distance key - query, -reach to reach, with a margin at both ends; NULL: none */
    char *out;           /* (tokens, size), rows ldout bytes apart */
    int half;            /* 1: `out` is bfloat16; 0: float32 */
    int size;            /* padded columns */
} ff_head;

typedef struct {
    void (*pack_keys)(const ff_head *, float *keys);  /* pack keys and values into keys (ff_keys_floats) */
    /* softmax(Q K^T + bias) V of queries [from, to), at most FF_QUERIES; keys (ff_keys_floats), scratch
       (ff_attention_floats) */
    void (*attend)(const ff_head *, int64_t from, int64_t to, const float *keys, float *scratch);
} ff_attention;
/* format: FF_FLOAT, FF_BF16 or FF_INT8; NULL if this machine has none */
const ff_attention *ff_find_attention(int isa, int format);
const ff_attention *ff_attention_of(int isa, int format);  /* selftest/usable.c: also NULL if it failed its self-test */

typedef struct {
    /* y = LayerNorm(x) in float32; y may be x. All: (width), zeros up to a whole panel */
    void (*norm)(const float *x, float *y, int64_t width, const float *scale, const float *bias, float eps);
    /* x (width, zeros up to a whole panel) = word + position */
    void (*embed)(const ff_encoder *, int32_t id, int32_t position, int64_t width, float *x);
    /* to (width) = (first) or += share / divisor * sum weights[t] x[t]; x (tokens, width), rows ldx floats apart,
       weights (tokens) */
    void (*pool)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float divisor,
                 float share, int first, float *to);
    /* to (width) = columnwise maximum of weights[t] x[t], NaN if one is not finite */
    void (*largest)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float *to);
    /* to = x (columns) in `format`; bytes: x by (columns; NULL: 1), then the scale and the FF_APART columns `apart`
       (NULL: none), whose factors should be 0 */
    void (*convert)(const float *x, const float *by, const int32_t *apart, int64_t columns, int format, char *to);
    /* rotate x (heads, [q|k|v], head) in place: channels i and i + head / 2 of q and k, table (head) [cosines |
       sines] */
    void (*rotate)(float *x, int heads, int head, const float *table);
    /* x[0:width] = activation(x[0:width]) x[width:2 width], in place */
    void (*glu)(float *x, int64_t width, int activation);
} ff_body;
const ff_body *ff_body_of(int isa);

/* x (width) /= max(|x|, 1e-12), as torch.nn.functional.normalize; squares are summed in float64. */
void ff_normalise_row(float *x, int64_t width);
/* x (width) = activation(x) + add (width); add NULL: 0 */
void ff_activate_row(int64_t activation, float *x, int64_t width, const float *add);

typedef struct {  /* neighbouring texts, from token `row` of the call, and their buffers */
    int64_t text, texts, row, rows;
    char *at[FF_BUFFERS];
    float *keys;  /* (ff_shared_floats); NULL: one thread does whole steps */
} ff_group;

typedef struct {
    const ff_encoder *e;
    const ff_texts *in;
    const ff_body *body;
} ff_call;
/* Elements of a step that threads may share: panels, rows, texts, or heads by blocks of queries. */
int64_t ff_step_elements(const ff_call *, const ff_step *, const ff_group *);
/* Compute elements [from, to) of a step. scratch: (ff_attention_floats + ff_keys_floats). */
void ff_run_step(const ff_call *, const ff_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
/* Pool x (tokens, width) of `text`, rows ldx floats apart, to `to` (width); weights (tokens) is scratch. */
void ff_pool(const ff_call *, const ff_pool_step *, int64_t text, const float *x, ptrdiff_t ldx, float *weights, float *to);

typedef struct {         /* the division of a call's work */
    int64_t alone;       /* first texts, one thread per group of at most `limit` tokens or one text */
    int64_t limit;
    int64_t end;         /* when all threads are done, in tokens of one thread's work */
    int64_t count, rows; /* groups of one thread and their most tokens; then shared groups */
    int64_t shared, shared_rows;
} ff_shares;
/* The division that ends soonest, in groups that stay in L2. longest: tokens, above 0. */
ff_shares ff_share_texts(const ff_texts *in, int64_t longest, int isa, int threads);
/* Set the last four fields; fill `groups` unless NULL. */
void ff_cut_groups(const ff_texts *in, ff_shares *, ff_group *groups);

size_t ff_keys_floats(int64_t tokens, int head, int vector);
size_t ff_attention_floats(int64_t tokens, int head, int vector);  /* scratch besides the keys */
/* Floats of shared keys: all heads of texts above FF_QUERIES tokens, in a group of `rows` tokens. */
size_t ff_shared_floats(const ff_encoder *, int64_t rows);
/* Elements of FF_ATTEND (texts x heads x blocks) or FF_PACK, and computing [from, to) of them. */
int64_t ff_attend_elements(const ff_call *, const ff_attend_step *, const ff_group *);
void ff_attend(const ff_call *, const ff_attend_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
extern const ff_attention ff_attention_portable, ff_attention_avx2, ff_attention_avx512, ff_attention_avx512_bf16,
    ff_attention_avx512_vnni, ff_attention_amx, ff_attention_amx_emulated;
extern const ff_body ff_body_portable, ff_body_avx2, ff_body_avx512;

#endif
