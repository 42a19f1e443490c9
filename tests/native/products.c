/* Every product of every instruction set of this machine against float64, and AMX against its emulation, without Python:
   for cross-compiled builds and emulators. Exits with the number of products that are wrong. Build and run:

     cc -std=c11 -O3 -ffp-contract=off -Ikernels/c tests/native/products.c $(find kernels/c -name '*.c') -pthread -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder/encoder.h"
#include "mxcsr.h"

enum { COLUMNS = 96, MOST_ROWS = 257, MOST_INNER = 832, ROOM = 288 };

static const int row_counts[] = {1, 3, 7, 15, 16, 17, 31, 32, 33, 64, 65, 97, 257}, inners[] = {32, 96, 832};
static const char *const names[FF_FORMATS] = {"float32", "bfloat16", "bfloat16 widened", "int8 + 128", "int8", "int8 tiles"};

static float weights[COLUMNS][MOST_INNER], x[ROOM][MOST_INNER], bias[COLUMNS], add[ROOM][COLUMNS];
static _Alignas(64) char memory[4 * COLUMNS * (MOST_INNER + 3)], operand[ROOM][4 * MOST_INNER + 128];
static double wanted[ROOM][COLUMNS], rounding[ROOM][COLUMNS];
static _Alignas(64) float found[ROOM][COLUMNS + 16], again[ROOM][COLUMNS + 16];

static float draw(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static float bfloat16(float value)
{
    union { float value; uint32_t bits; } x = {value};
    x.bits = (x.bits + 0x7fff + (x.bits >> 16 & 1)) & 0xffff0000u;
    return x.value;
}

/* Weights as cpu_layout.py packs them; `weights` become what the packed ones are worth. */
static ff_linear pack(int isa, int format, int inner)
{
    const int panel = 2 * ff_isa_vector(isa), bytes = format == FF_FLOAT ? 4 : format <= FF_BF16_WIDE ? 2 : 1;
    const int lanes = 4 / bytes, steps = inner / lanes, tiles = (steps + FF_TILE_STEPS - 1) / FF_TILE_STEPS;
    const int stored = format == FF_INT8_TILES ? tiles * FF_TILE_STEPS : steps, run = lanes * ff_steps_together(isa, format);
    float *b = (float *)(void *)memory, *scale = b + COLUMNS;
    int32_t *shift = (int32_t *)(void *)(scale + COLUMNS);
    char *packed = (char *)(shift + COLUMNS);
    memset(memory, 0, sizeof memory);
    memcpy(b, bias, sizeof bias);
    for (int c = 0; c < COLUMNS; c++) {
        scale[c] = 1.0f / (float)(100 + c);
        for (int k = 0; k < inner; k++) {
            char *to = packed + 4 * (c / panel * stored * panel) + (k / run * panel + c % panel) * run * bytes + k % run * bytes;
            if (format == FF_FLOAT) {
                memcpy(to, &weights[c][k], 4);
            } else if (bytes == 2) {
                union { float value; uint16_t halves[2]; } w = {weights[c][k] = bfloat16(weights[c][k])};
                memcpy(to, &w.halves[1], 2);
            } else {
                const int w = (int)lrintf(weights[c][k] * 127);
                *(int8_t *)to = (int8_t)w;
                weights[c][k] = (float)w * scale[c];
                shift[c] -= format == FF_INT8 ? 128 * w : 0;
            }
        }
    }
    return (ff_linear){packed - memory, 0, (char *)scale - memory, (char *)shift - memory, COLUMNS, steps, format, -1, FF_FLOAT};
}

/* The result in float64, and what a rounding of the largest sum may cost. */
static void exact(int format, int inner, int r)
{
    const float scale = *(const float *)(const void *)(operand[r] + inner);
    for (int c = 0; c < COLUMNS; c++) {
        double sum = 0, size = 1;
        for (int k = 0; k < inner; k++) {
            double v = x[r][k];
            if (format == FF_BF16)
                v = bfloat16(x[r][k]);
            else if (format == FF_INT8)
                v = ((uint8_t)operand[r][k] - 128) * (double)scale;
            else if (format >= FF_INT8_SIGNED)
                v = (int8_t)operand[r][k] * (double)scale;
            sum += v * (double)weights[c][k];
            size += fabs(v * (double)weights[c][k]);
        }
        wanted[r][c] = sum + (double)bias[c] + (double)add[r][c];
        rounding[r][c] = 0x1p-24 * (size + fabs(wanted[r][c]));
    }
}

/* Errors in units of what one rounding of the largest sum costs, or -1 if the bits depend on the company. */
static double check(int isa, int format, const ff_body *body)
{
    double worst = 0;
    const ptrdiff_t lda = sizeof operand[0], ldc = COLUMNS + 16;
    const int64_t panels = COLUMNS / (2 * ff_isa_vector(isa));
    const ff_product product = ff_product_of(isa, format);
    for (int i = 0; i < 3; i++) {
        const int inner = inners[i];
        for (int c = 0; c < COLUMNS; c++)
            for (int k = 0; k < inner; k++)
                weights[c][k] = draw();
        const ff_linear l = pack(isa, format, inner);
        memset(operand, 0xff, sizeof operand);  /* beyond the rows and their widths: NaN */
        for (int r = 0; r < MOST_ROWS; r++) {
            for (int k = 0; k < inner; k++)
                x[r][k] = draw();
            if (format == FF_FLOAT || format == FF_BF16_WIDE)
                memcpy(operand[r], x[r], 4 * (size_t)inner);
            else
                body->convert(x[r], NULL, NULL, inner, format, operand[r]);
            exact(format, inner, r);
        }
        for (int n = 0; n < (int)(sizeof row_counts / sizeof *row_counts); n++) {
            const int rows = row_counts[n];
            ff_switch_tiles(isa, 1);
            product(memory, &l, operand[0], lda, rows, 0, 1, (char *)found[0], 4 * ldc, FF_LINEAR_ONLY, add[0], COLUMNS);
            product(memory, &l, operand[0], lda, rows, 1, panels, (char *)found[0], 4 * ldc, FF_LINEAR_ONLY, add[0], COLUMNS);
            const int last = rows - 1;
            product(memory, &l, operand[last], lda, 1, 0, panels, (char *)again[0], 4 * ldc, FF_LINEAR_ONLY, add[last], COLUMNS);
            ff_switch_tiles(isa, 0);
            if (memcmp(found[last], again[0], sizeof(float) * COLUMNS))
                return -1;
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < COLUMNS; c++) {
                    const double error = fabs((double)found[r][c] - wanted[r][c]) / rounding[r][c];
                    worst = error <= worst ? worst : error;
                }
        }
    }
    return worst;
}

static double activated(int activation, double v)
{
    const double tanh_form = 0.7978845608028654 * (v + 0.044715 * v * v * v);
    switch (activation) {
    case FF_GELU: return 0.5 * v * erfc(-v * 0.7071067811865476);
    case FF_GELU_TANH: return v / (1 + exp(-2 * tanh_form));
    case FF_RELU_ONLY: return v > 0 ? v : 0;
    default: return v;
    }
}

/* Results rounded to bfloat16, of inputs from -12 to 12: errors in units of half the last digit; -1 as above, or if a
   tie is not rounded to even. Below 2^-20 of the input errors count as of a number of that size. */
static double check_half(int isa, const ff_body *body)
{
    enum { INNER = 96, ROWS = 33 };
    static _Alignas(64) uint16_t halves[ROWS + FF_SPARE_ROWS][COLUMNS], alone[FF_SPARE_ROWS][COLUMNS];
    static const int kinds[] = {FF_LINEAR_ONLY, FF_GELU, FF_GELU_TANH, FF_RELU_ONLY};
    const ptrdiff_t lda = sizeof operand[0], ldc = sizeof halves[0];
    const int64_t panels = COLUMNS / (2 * ff_isa_vector(isa));
    const ff_product product = ff_product_of(isa, FF_BF16);
    double worst = 0;
    for (int c = 0; c < COLUMNS; c++)
        for (int k = 0; k < INNER; k++)
            weights[c][k] = k < 3 && c % 4 ? 4 * draw() : 0;
    ff_linear l = pack(isa, FF_BF16, INNER);
    l.result = FF_BF16;
    for (int c = 0; c < COLUMNS; c += 4)
        ((float *)(void *)memory)[c] = 1 + (float)(c / 2 + 1) * 0x1p-8f;
    memset(operand, 0, sizeof operand);
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < INNER; k++)
            x[r][k] = draw();
        body->convert(x[r], NULL, NULL, INNER, FF_BF16, operand[r]);
    }
    for (int i = 0; i < 4; i++) {
        ff_switch_tiles(isa, 1);
        product(memory, &l, operand[0], lda, ROWS, 0, 1, (char *)halves, ldc, kinds[i], NULL, 0);
        product(memory, &l, operand[0], lda, ROWS, 1, panels, (char *)halves, ldc, kinds[i], NULL, 0);
        product(memory, &l, operand[ROWS - 1], lda, 1, 0, panels, (char *)alone, ldc, kinds[i], NULL, 0);
        ff_switch_tiles(isa, 0);
        if (memcmp(halves[ROWS - 1], alone[0], sizeof alone[0]))
            return -1;
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++) {
                double sum = (double)((const float *)(const void *)memory)[c];
                for (int k = 0; k < 3; k++)
                    sum += (double)bfloat16(x[r][k]) * (double)weights[c][k];
                const union { uint32_t bits; float value; } got = {(uint32_t)halves[r][c] << 16};
                if (kinds[i] == FF_LINEAR_ONLY && c % 4 == 0 && got.value != bfloat16((float)sum))
                    return -1;
                const double right = activated(kinds[i], sum), size = fmax(fabs(right), 0x1p-20 * fabs(sum));
                const double error = fabs((double)got.value - right) / exp2(floor(log2(size)) - 8);
                worst = error <= worst ? worst : error;
            }
    }
    return worst;
}

static int agree(void)
{
    static _Alignas(64) union { char bytes[1024]; uint32_t words[256]; float floats[256]; } a, b, hard, soft;
    for (int number = 0; number < 2000; number++) {
        for (int i = 0; i < 256; i++) {  /* all bit patterns, and as many sums of ordinary size and of subnormal products */
            const float f = draw(), g = draw();
            const uint32_t most = number % 4 == 1 ? 0x8fff8fffu : number % 4 == 2 ? 0xdfffdfffu : 0xffffffffu;
            a.words[i] = (uint32_t)(int32_t)(f * 2147483520.0f) & most;
            b.words[i] = (uint32_t)(int32_t)(g * 2147483520.0f) & most;
            if (number % 4 == 3)
                a.floats[i] = f, b.floats[i] = g;
            hard.floats[i] = soft.floats[i] = number % 4 ? draw() : 0x1p-127f * f;
        }
        ff_try_tile(FF_AMX, number & 1, a.bytes, b.bytes, hard.bytes);
        ff_try_tile(FF_AMX_EMULATED, number & 1, a.bytes, b.bytes, soft.bytes);
        for (int i = 0; i < 256; i++)
            if (hard.words[i] != soft.words[i] && ((number & 1) || hard.floats[i] == hard.floats[i])) {
                printf("number %d: %08x, emulated %08x\n", number, hard.words[i], soft.words[i]);
                return 0;
            }
    }
    return 1;
}

int main(void)
{
    int wrong = 0;
    ff_set_mxcsr(FF_FLUSH);
    for (int c = 0; c < COLUMNS; c++)
        bias[c] = draw();
    for (int r = 0; r < ROOM; r++)
        for (int c = 0; c < COLUMNS; c++)
            add[r][c] = draw();
    printf("AMX: %s\n", *ff_amx_missing() ? ff_amx_missing() : "usable");
    if (!*ff_amx_missing()) {
        const int same = agree();
        printf("AMX tile operations and their emulation: %s\n", same ? "the same bits" : "DIFFERENT");
        wrong += !same;
    }
    for (int isa = 0; isa < FF_ISAS; isa++)
        for (int format = 0; ff_isa_usable(isa) && format < FF_FORMATS; format++)
            if (ff_product_of(isa, format)) {
                const double error = check(isa, format, ff_body_of(isa));
                const int right = error >= 0 && error <= 12;
                printf("%-13s %-17s %s%.2f roundings\n", ff_isa_name(isa), names[format], right ? "" : "WRONG ", error);
                wrong += !right;
            }
    for (int isa = 0; isa < FF_ISAS; isa++)
        if (ff_isa_usable(isa) && ff_product_of(isa, FF_BF16)) {
            const double error = check_half(isa, ff_body_of(isa));
            const int right = error >= 0 && error <= 1.1;
            printf("%-13s results bfloat16  %s%.2f half digits\n", ff_isa_name(isa), right ? "" : "WRONG ", error);
            wrong += !right;
        }
    return wrong;
}
