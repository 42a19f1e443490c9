/* Find pairs of int8 rows with a large scaled product: tiles of the products in gemm/, of which only what passes is
   written. A thread takes a tile of columns, packs it, and multiplies all rows with it. */
#include <stdatomic.h>
#include <string.h>

#include "gemm/gemm.h"
#include "mxcsr.h"
#include "scalar.h"
#include "search.h"

enum { TILE = 512, ROWS = 192, AT_ONCE = 256, SOME = 64, HELD = 1024, PART = 96 };
_Static_assert(ROWS % FF_SPARE_ROWS == 0 && TILE % AT_ONCE == 0, "products read whole blocks of rows");

typedef struct {
    const ff_compared *what;
    ff_product product;
    ff_reach *reach;  /* NULL without tiles */
    int isa, format, panel, together;
    int64_t width, stride;  /* bytes of padded codes, and of an operand row, which ends in its scale */
    char *workspace;
    _Atomic int64_t next, found;
} comparison;

typedef struct {
    int32_t pairs[HELD][2];
    int64_t count;
} passed;

/* Choose the product of an instruction set, or of a slower one if it has none for int8. */
static void choose_product(comparison *c, int isa)
{
    static const int formats[] = {FF_INT8_TILES, FF_INT8, FF_INT8_SIGNED};
    for (c->isa = isa;; c->isa = c->isa > FF_AVX2 ? c->isa - 1 : FF_PORTABLE)
        for (int i = 0; i < 3; i++) {
            c->format = formats[i];
            c->product = ff_isa_usable(c->isa) ? ff_product_of(c->isa, c->format) : NULL;
            if (c->product || (c->isa == FF_PORTABLE && i == 2))
                return;
        }
}

/* Pack columns [from, from + count) into panels of `memory`: padded columns are zeros. */
static void pack_columns(const comparison *c, const ff_linear *l, int64_t from, int64_t count, char *memory)
{
    const ff_compared *w = c->what;
    const int64_t bytes = 4 * c->together;
    memset(memory, 0, (size_t)(l->columns * c->width));
    for (int64_t j = 0; j < l->columns; j++) {
        const int there = j < count;
        const int8_t *codes = w->others + (from + j) * w->width;
        char *to = memory + j / c->panel * c->panel * c->width + j % c->panel * bytes;
        int32_t sum = 0;
        for (int64_t i = 0; there && i < w->width; i += bytes, to += bytes * c->panel)
            memcpy(to, codes + i, (size_t)(w->width - i < bytes ? w->width - i : bytes));
        for (int64_t i = 0; there && i < w->width; i++)
            sum += codes[i];
        ((float *)(void *)(memory + l->scale))[j] = there ? w->other_scale[from + j] : 0;
        ((float *)(void *)(memory + l->bias))[j] = there ? w->slack[from + j] : 0;
        ((int32_t *)(void *)(memory + l->shift))[j] = c->format == FF_INT8 ? -FF_ZERO_POINT * sum : 0;
    }
}

static void make_operand(const comparison *c, int64_t from, int64_t count, char *to)
{
    const ff_compared *w = c->what;
    for (int64_t r = 0; r < count; r++, to += c->stride) {
        memcpy(to, w->rows + (from + r) * w->width, (size_t)w->width);
        for (int64_t i = 0; c->format == FF_INT8 && i < c->width; i += 8) {  /* adds the zero point to eight bytes */
            uint64_t some;
            memcpy(&some, to + i, 8);
            some ^= 0x8080808080808080;
            memcpy(to + i, &some, 8);
        }
        memcpy(to + c->width, w->scale + from + r, 4);
    }
}

static void write_passed(comparison *c, passed *p)
{
    const int64_t at = atomic_fetch_add(&c->found, p->count);
    const int64_t left = c->what->room - at, fit = left < p->count ? left : p->count;
    if (fit > 0)
        memcpy(c->what->pairs + 2 * at, p->pairs, (size_t)fit * sizeof *p->pairs);
    p->count = 0;
}

FF_CLONES static int any_reaches(const float *y, float least)
{
    int any = 0;
    for (int i = 0; i < SOME; i++)
        any |= y[i] >= least;
    return any;
}

static void add_pair(comparison *c, passed *p, int64_t row, int64_t column)
{
    if (c->what->rows == c->what->others && row >= column)
        return;
    if (p->count == HELD)
        write_passed(c, p);
    p->pairs[p->count][0] = (int32_t)row;
    p->pairs[p->count++][1] = (int32_t)column;
}

/* Note the pairs of y (rows, AT_ONCE), whose first is (row, column), that reach the row's least product. */
static void note_passed(comparison *c, passed *p, const float *y, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    const ff_compared *w = c->what;
    for (int64_t r = 0; r < rows; r++, y += AT_ONCE)
        for (int64_t some = 0; some < columns; some += SOME) {
            const float least = w->least[row + r];
            if (!any_reaches(y + some, least))
                continue;
            for (int64_t i = some; i < columns && i < some + SOME; i++) {
                if (y[i] >= least)
                    add_pair(c, p, row + r, column + i);
            }
        }
}

/* Note the pairs of an operand of `rows` rows and of columns packed at `memory` by AMX tiles: parts of PART rows stay in
   L1, where each panel meets them. */
static void reach_pairs(comparison *c, passed *p, const char *memory, const ff_linear *l, const char *operand, int64_t row,
                        int64_t rows, int64_t column, int64_t columns)
{
    const float *scale = (const float *)(const void *)(memory + l->scale), *slack = (const float *)(const void *)(memory + l->bias);
    uint32_t hits[FF_SPARE_ROWS];
    for (int64_t part = 0; part < rows; part += PART)
        for (int64_t at = 0; at < columns; at += c->panel)
            for (int64_t i = part; i < rows && i < part + PART; i += FF_SPARE_ROWS) {
                const int64_t few = rows - i < FF_SPARE_ROWS ? rows - i : FF_SPARE_ROWS;
                if (!c->reach(operand + i * c->stride, c->stride, memory + at * c->width, c->width / 64, few,
                              c->what->scale + row + i, c->what->least + row + i, scale + at, slack + at, hits))
                    continue;
                for (int64_t r = 0; r < few; r++)
                    for (int64_t j = 0; j < c->panel && at + j < columns; j++)
                        if (hits[r] >> j & 1)
                            add_pair(c, p, row + i + r, column + at + j);
            }
}

static int64_t whole_lines(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void compare_tiles(void *context, int thread)
{
    comparison *c = context;
    const ff_compared *w = c->what;
    const int64_t vectors = TILE * 4, panels = TILE * c->width, stage = ROWS * AT_ONCE * 4;
    const int64_t space = panels + 3 * vectors + stage + ROWS * c->stride;
    char *memory = thread ? ff_scratch((size_t)space) : c->workspace;
    passed p = {.count = 0};
    if (!memory)  /* without memory, leave the work to other threads */
        return;
    float *sums = (float *)(void *)(memory + panels + 3 * vectors);
    char *operand = memory + panels + 3 * vectors + stage;
    const ff_linear all = {.bias = panels, .scale = panels + vectors, .shift = panels + 2 * vectors, .columns = TILE,
                           .steps = c->width / 4, .format = c->format, .apart = -1, .result = FF_FLOAT};
    const ff_mxcsr csr = ff_set_mxcsr(FF_FLUSH);
    ff_switch_tiles(c->isa, 1);
    memset(operand, 0, (size_t)(ROWS * c->stride));
    memset(sums, 0, (size_t)stage);
    for (int64_t from; (from = atomic_fetch_add(&c->next, TILE)) < w->to;) {
        const int64_t here = w->to - from < TILE ? w->to - from : TILE;
        const int64_t end = w->rows == w->others && from + here < w->count ? from + here : w->count;
        pack_columns(c, &all, from, here, memory);
        for (int64_t row = 0; row < end; row += ROWS) {
            const int64_t rows = end - row < ROWS ? end - row : ROWS;
            make_operand(c, row, rows, operand);
            if (c->reach) {
                reach_pairs(c, &p, memory, &all, operand, row, rows, from, here);
                continue;
            }
            for (int64_t at = 0; at < here; at += AT_ONCE) {
                ff_linear l = all;
                l.weights += at * c->width, l.bias += 4 * at, l.scale += 4 * at, l.shift += 4 * at;
                c->product(memory, &l, operand, c->stride, rows, 0, AT_ONCE / c->panel, (char *)sums, AT_ONCE * 4,
                           FF_LINEAR_ONLY, NULL, 0);
                note_passed(c, &p, sums, row, rows, from + at, here - at < AT_ONCE ? here - at : AT_ONCE);
            }
        }
    }
    write_passed(c, &p);
    ff_switch_tiles(c->isa, 0);
    ff_set_mxcsr(csr);
}

int64_t ff_compare(int isa, const ff_compared *what, int threads)
{
    comparison c = {.what = what, .next = what->from};
    choose_product(&c, isa);
    if (!c.product)
        return -2;
#if FF_HAS_AMX
    if (c.format == FF_INT8_TILES)
        c.reach = c.isa == FF_AMX ? ff_reach_amx : ff_reach_amx_emulated;
#endif
    c.panel = 2 * ff_isa_vector(c.isa), c.together = ff_steps_together(c.isa, c.format);
    c.width = whole_lines(what->width), c.stride = c.width + 64;
    c.workspace = ff_scratch((size_t)(TILE * c.width + 12 * TILE + ROWS * AT_ONCE * 4 + ROWS * c.stride));
    if (!c.workspace)
        return -1;
    ff_run(compare_tiles, &c, threads);
    return atomic_load(&c.found);
}
