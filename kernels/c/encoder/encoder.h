/* The frozen encoder as a list of steps over packed tokens. The lists are built by encoder/cpu.py. Every width is padded
   to whole panels of ff_isa_vector(isa) * 2 columns; padding columns hold zeros from end to end. */
#ifndef FASTFLOW_ENCODER_H
#define FASTFLOW_ENCODER_H

#include "gemm/gemm.h"

enum { FF_BUFFERS = 16 };  /* at most */
#define FF_THREAD_ROWS 48  /* a thread's rows of a group from which reading all weights costs less than exchanging rows */
#define FF_SCORES_SPARE 16  /* floats between attention's rows of scores: rows a power of two apart would share cache sets */
enum { FF_KEYS = 512, FF_QUERIES = 192 };  /* keys in a block of attention's, and the most queries */
enum { FF_TILE_QUERIES = 32 };  /* in a tile of AMX; no instruction set has more */
enum { FF_BYTES_FROM = 64 };  /* tokens of a text: attention in bytes saves less than it costs below, so bfloat16 stands in */
#define FF_BIAS_MARGIN 16  /* numbers like the first, and like the last, that a head's table of biases begins and ends with */
enum {
    FF_EMBED, FF_LINEAR, FF_PACK, FF_ATTEND, FF_NORM, FF_CONVERT, FF_ROTATE, FF_GLU, FF_POOL, FF_FIRST, FF_UNIT, FF_MAP, FF_OUTPUT,
    FF_STEP_KINDS
};
enum { FF_MEAN, FF_MEAN_SQRT, FF_POSITION_MEAN, FF_LARGEST_OF, FF_FIRST_TOKEN, FF_LAST_TOKEN };  /* FF_POOL */
enum {  /* FF_MAP: activations as torch.nn defines them without arguments */
    FF_MAP_IDENTITY, FF_MAP_TANH, FF_MAP_RELU, FF_MAP_GELU, FF_MAP_SIGMOID, FF_MAP_SILU, FF_MAP_ELU, FF_MAP_LEAKY_RELU,
    FF_MAP_SOFTPLUS, FF_MAP_SOFTSIGN, FF_MAP_RELU6, FF_MAP_HARDTANH, FF_MAP_MISH
};

void ff_trim(void);  /* give freed memory back to the system, if the C library keeps it and can */

/* A step: `kind`, then the fields of that kind and no others. All are int64, since Python writes them as one row.
     source, target  buffers; a step without source changes its target in place
     texts           1: the buffers hold a row a text, not a row a token
     width           true columns; FF_CONVERT and FF_GLU: padded columns
     scale, bias ... names of float32 vectors are their offsets in the encoder's memory, in bytes */
typedef struct {
    int64_t kind, target, width, scale, bias;
    int64_t mean;        /* 1: every token has the row of positions that follows `position_rows` others */
} ff_embed_step;
typedef struct {
    int64_t kind, source, target, texts;
    int64_t product;     /* which of the encoder's `linears` */
    int64_t activation;  /* FF_LINEAR_ONLY ... */
    int64_t add;         /* buffer added to the result, or -1 */
} ff_linear_step;
typedef struct {         /* FF_ATTEND, and the FF_PACK before it */
    int64_t kind, source, target;
    int64_t format, result;  /* of attention; FF_BF16 or FF_FLOAT, of the rows of `target` */
    int64_t window;      /* a token sees keys at most this many tokens away; below 0: all */
    int64_t biases;      /* each head's float32 biases of the scores, as in ff_head; below 0: none */
    int64_t reach;       /* the largest distance that has a bias of its own */
} ff_attend_step;
typedef struct {
    int64_t kind, source, target, texts, width, scale, bias;
    int64_t eps;         /* one float32; below 0: the encoder's */
} ff_norm_step;
typedef struct {
    int64_t kind, source, target, width;
    int64_t format;      /* FF_BF16, or one of bytes */
    int64_t factors;     /* to bytes: a float32 for each padded column; below 0: none */
    int64_t apart;       /* to bytes: the int32 numbers of FF_APART columns apart; below 0: none */
} ff_convert_step;
typedef struct {
    int64_t kind, target;
    int64_t table;       /* [cosines | sines], a row of `head` float32 a position */
} ff_rotate_step;
typedef struct { int64_t kind, target, width, activation; } ff_glu_step;
typedef struct {
    int64_t kind, source;
    int64_t target;      /* -1: the caller's pooled vectors */
    int64_t width, slot; /* slot: which wanted layer this is */
    int64_t mode;        /* FF_MEAN ... */
    int64_t column;      /* the first in the target */
    int64_t share;       /* one float32, the layer's share */
    int64_t first;       /* 1 to set the sum, 0 to add to it */
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
    const float *positions;   /* (position rows, width of the embeddings), segment 0 added, and a row more if a step of
                                 FF_EMBED has `mean`; NULL: none are added */
    const void *words;        /* (vocabulary, width) */
    const float *token_weights;  /* (vocabulary), 0 or 1e-30 to 1e30, for FF_POOL; NULL: all count equally */
    int32_t half;             /* words are IEEE half, not float32 */
    int32_t count, buffers;
    int32_t heads, head;      /* head: padded columns of one head */
    int32_t hidden, outputs;  /* true columns of a hidden state, and of a pooled vector */
    int32_t position_start, pad_id;  /* pad_id -1: every token is numbered */
    int32_t vocabulary, position_rows;  /* without a table: the most tokens of a text */
    int32_t layers;           /* wanted layers, whose means are averaged */
    int32_t isa;
    float eps;
} ff_encoder;

typedef struct {
    const int32_t *ids;      /* (N) */
    const int64_t *offsets;  /* (texts + 1) */
    int64_t texts;
    int64_t skip;            /* tokens at the head of every text, a prompt's, that pooling leaves out */
    float *pooled;           /* (texts, outputs) */
    float *states;           /* (layers, N, hidden), or NULL: hidden states of the wanted layers are not kept */
} ff_texts;

/* Packed texts -> pooled vectors. Every text has the same bits whatever its company, the order and the threads.
   0; -1: out of memory. texts = 0 does nothing. The texts must have passed ff_check_texts. */
int ff_encoder_run(const ff_encoder *encoder, const ff_texts *texts, int threads);
/* The first text without tokens, with more than the position table has, or with an id outside the vocabulary; or -1. */
int64_t ff_check_texts(const ff_encoder *encoder, const ff_texts *texts);

typedef struct {         /* attention's work on one head of one text */
    const char *q;       /* (tokens, 3 size): [q|k|v], float32 if attention is, else bfloat16, rows ldq bytes apart */
    ptrdiff_t ldq, ldout;
    int64_t tokens, window, reach;
    const float *bias;   /* by distance key - query from -reach to reach, with a margin at both ends; NULL: none */
    char *out;           /* (tokens, size), rows ldout bytes apart */
    int half;            /* whether `out` is bfloat16, if attention is; else float32 */
    int size;            /* padded columns */
} ff_head;

typedef struct {
    void (*pack_keys)(const ff_head *, float *keys);  /* and values, to ff_keys_floats */
    /* softmax(Q K^T + bias) V of queries [from, to), at most FF_QUERIES; scratch of ff_attention_floats */
    void (*attend)(const ff_head *, int64_t from, int64_t to, const float *keys, float *scratch);
} ff_attention;
/* FF_FLOAT, FF_BF16 or FF_INT8; NULL if this machine has none */
const ff_attention *ff_attention_of(int isa, int format);

typedef struct {
    /* LayerNorm of one row, in place or not; columns beyond `width` up to a whole panel become zero */
    void (*norm)(const float *x, float *y, int64_t width, const float *scale, const float *bias, float eps);
    void (*embed)(const ff_encoder *, int32_t id, int32_t position, int64_t width, float *x);
    /* add the sum of `tokens` rows, each by its weight, over `divisor`, times `share`, to `to`, or set it when `first` */
    void (*pool)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float divisor,
                 float share, int first, float *to);
    /* the largest of `tokens` rows, each times its weight, column by column; NaN if one is not finite */
    void (*largest)(const float *x, ptrdiff_t ldx, const float *weights, int64_t tokens, int64_t width, float *to);
    /* `by` multiplies the columns of bytes; NULL: nothing does. FF_APART numbers of the row, those of columns `apart`,
       follow its scale as they are; NULL: none do. Their factors should be 0. */
    void (*convert)(const float *x, const float *by, const int32_t *apart, int64_t columns, int format, char *to);
    /* one row [q|k|v] of every head, in place: channels i and i + head / 2 of q and k turn by a row of the table */
    void (*rotate)(float *x, int heads, int head, const float *table);
    /* the first `width` columns of a row, in place: activation(x) times the `width` columns after them */
    void (*glu)(float *x, int64_t width, int activation);
} ff_body;
const ff_body *ff_body_of(int isa);

/* x (width) divided by max(|x|, 1e-12), as torch.nn.functional.normalize; squares are summed in float64. */
void ff_normalise_row(float *x, int64_t width);
/* x (width) = activation(x) + add (width); add NULL: 0 */
void ff_activate_row(int64_t activation, float *x, int64_t width, const float *add);

typedef struct {  /* neighbouring texts and their buffers */
    int64_t text, texts, row, rows;
    char *at[FF_BUFFERS];
    float *keys;  /* of ff_shared_floats; NULL: one thread does whole steps */
} ff_group;

typedef struct {
    const ff_encoder *e;
    const ff_texts *in;
    const ff_body *body;
} ff_call;
/* How many elements a step of a group has, which threads may share: panels, rows, texts, or heads by blocks of queries. */
int64_t ff_step_elements(const ff_call *, const ff_step *, const ff_group *);
/* Compute elements [from, to) of a step. scratch: of ff_attention_floats and ff_keys_floats. */
void ff_run_step(const ff_call *, const ff_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
/* Pool `text`, whose states (tokens, width) begin at x, rows ldx floats apart, to `to` (width), summed in float32 and the
   weights in float64; `weights` is scratch, a number a token. */
void ff_pool(const ff_call *, const ff_pool_step *, int64_t text, const float *x, ptrdiff_t ldx, float *weights, float *to);

typedef struct {         /* who computes what */
    int64_t alone;       /* the first texts, in groups of at most `limit` tokens or one longer text, a thread each */
    int64_t limit;
    int64_t end;         /* when all is done, in tokens of a thread's work */
    int64_t count, rows; /* groups, and the most tokens of one; then of the groups that all threads share */
    int64_t shared, shared_rows;
} ff_shares;
/* The shares in which the threads are done soonest, with groups that stay in a second-level cache; 0 < `longest` text. */
ff_shares ff_share_texts(const ff_texts *in, int64_t longest, int isa, int threads);
/* Sets the last four fields, and fills `groups` if any. */
void ff_cut_groups(const ff_texts *in, ff_shares *, ff_group *groups);

size_t ff_keys_floats(int64_t tokens, int head, int vector);
size_t ff_attention_floats(int64_t tokens, int head, int vector);  /* scratch in addition to the keys */
/* Floats for the keys that threads share: all heads of the texts of more than FF_QUERIES tokens in a group of `rows`. */
size_t ff_shared_floats(const ff_encoder *, int64_t rows);
/* The elements of a step FF_ATTEND, texts x heads x blocks of queries, or FF_PACK; and [from, to) of them. */
int64_t ff_attend_elements(const ff_call *, const ff_attend_step *, const ff_group *);
void ff_attend(const ff_call *, const ff_attend_step *, const ff_group *, int64_t from, int64_t to, float *scratch);
extern const ff_attention ff_attention_portable, ff_attention_avx2, ff_attention_avx512, ff_attention_avx512_bf16,
    ff_attention_avx512_vnni, ff_attention_amx, ff_attention_amx_emulated;
extern const ff_body ff_body_portable, ff_body_avx2, ff_body_avx512;

#endif
