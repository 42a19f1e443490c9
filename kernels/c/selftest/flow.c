/* Self-test of a flow with each kind of operation, on three rows and on one. */
#include <math.h>

#include "flow/flow.h"
#include "parts.h"

enum { WIDE = 20, ROWS = 3, SLOT = 64, INPUT = 0, HIDDEN = SLOT, RESULT = 2 * SLOT };
enum { HEAD = 12 };        /* columns in the first of two chains */
enum { MOST = 40 * WIDE };  /* most packed weights of a product */

typedef struct {
    float m[SLOT], s[SLOT], hidden[MOST], hidden_bias[SLOT], gate[2 * MOST], gate_bias[2 * SLOT], S[SLOT], t[SLOT];
} weights_of;

static double bias_of(int c) { return c % 5 / 4.0 - 0.5; }

/* Pack weights as flow/cpu.py does: panels of two vectors, the last of one; shifts next to gates. */
static void fill(weights_of *w, int vector)
{
    const int panel = 2 * vector;
    for (int c = 0; c < WIDE; c++) {
        const int low = c / panel * panel, wide = WIDE - low > vector ? panel : vector;
        const int at = c / vector * panel + c % vector;
        for (int k = 0; k < WIDE; k++) {
            w->hidden[low * WIDE + k * wide + c - low] = (float)ff_try_number(k, c);
            w->gate[c / vector * panel * WIDE + k * panel + c % vector] = (float)ff_try_number(k, c + 1);
            w->gate[c / vector * panel * WIDE + k * panel + vector + c % vector] = (float)ff_try_number(k, c + 2);
        }
        w->hidden_bias[c] = (float)bias_of(c);
        w->gate_bias[at] = (float)bias_of(c + 1);
        w->gate_bias[at + vector] = (float)bias_of(c + 2);
        w->m[c] = (float)ff_try_number(1, c);
        w->s[c] = 0.5f + (float)(c % 3);
        w->S[c] = 1 + (float)(c % 4) / 4;
        w->t[c] = (float)bias_of(c + 3);
    }
}

/* Compute the same flow in double: z (WIDE) from x (WIDE). */
static void compute(const weights_of *w, const float *x, double *z)
{
    double v[WIDE], h[WIDE], norm = 0;
    for (int c = 0; c < WIDE; c++)
        v[c] = ((double)x[c] - w->m[c]) * w->s[c];
    for (int c = 0; c < WIDE; c++) {
        h[c] = bias_of(c);
        for (int k = 0; k < WIDE; k++)
            h[c] += ff_try_number(k, c) * v[k];
        h[c] = h[c] > 0 ? h[c] : 0;
    }
    for (int c = 0; c < WIDE; c++) {
        double shift = bias_of(c + 1), gate = bias_of(c + 2);
        for (int k = 0; k < WIDE; k++) {
            shift += ff_try_number(k, c + 1) * h[k];
            gate += ff_try_number(k, c + 2) * h[k];
        }
        v[c] = (v[c] + shift) / (1 + exp(-gate));
    }
    for (int c = 0; c < WIDE; c++) {
        z[c] = w->S[c] * v[WIDE - 1 - c] + w->t[c];
        norm += z[c] * z[c];
    }
    for (int c = 0; c < WIDE; c++)
        z[c] /= sqrt(norm);
}

#define AT(field) (int32_t)(offsetof(weights_of, field) / sizeof(float))

int ff_try_flow(const ff_selftest *t)
{
    weights_of *w = (weights_of *)(void *)t->scratch;
    _Static_assert(sizeof(weights_of) <= FF_TRY_BYTES, "the weights fit");
    const int vector = ff_isa_vector(t->isa), vectors = (WIDE + vector - 1) / vector;
    float x[ROWS * WIDE], z[ROWS * WIDE];
    double want[ROWS * WIDE];
    enum { INDICES = 6 };
    int32_t table[INDICES + SLOT] = {FF_DESCENDING, INPUT + WIDE - 1, 1, FF_SCATTERED, 0, vectors - 1};
    for (int c = 0; c < vectors * vector; c++)
        table[INDICES + c] = c < WIDE ? WIDE - 1 - c : 0;
    const ff_op ops[] = {
        {FF_CENTRE, INPUT, WIDE, AT(m), AT(s), FF_INPUT, 0, 0, 0},
        {FF_PRODUCT, HIDDEN, WIDE, AT(hidden), AT(hidden_bias), INPUT, WIDE, HEAD, FF_RELU | FF_SPLIT},
        {FF_PRODUCT, INPUT, WIDE, AT(gate), AT(gate_bias), HIDDEN, WIDE, WIDE, FF_GATE},
        {FF_GATHER, RESULT, WIDE, AT(S), AT(t), 0, INDICES, 0, 0},
    };
    const ff_flow flow = {w->m, ops, table, 4, WIDE, WIDE, RESULT, 3 * SLOT + 16, ff_isa_rows(t->isa), 1, t->isa};
    fill(w, vector);
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < WIDE; c++)
            x[r * WIDE + c] = 4 * (float)ff_try_number(r + 2, c);
        compute(w, x + r * WIDE, want + r * WIDE);
    }
    if (ff_flow_run(&flow, x, z, ROWS, WIDE, 1, 1))
        return 1;  /* no fault of the kernel: memory is short */
    if (!ff_agree(t, FF_TRY_FLOW, z, want, ROWS * WIDE, 1e-5))
        return 0;
    return ff_flow_run(&flow, x, z, 1, WIDE, 1, 1) || ff_agree(t, FF_TRY_FLOW, z, want, WIDE, 1e-5);
}
