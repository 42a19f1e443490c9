/* The flow as loops in C; see ladder_naive.py, which compiles it. Arrays are row-major. */
#include <math.h>
#include <stdint.h>
static void linear(const float *w, const float *x, float *y, int n, int m)  /* y (n) = w (n, m) x (m) */
{
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < m; j++) sum += w[i * m + j] * x[j];
        y[i] = sum;
    }
}
static float relu(float x) { return x > 0 ? x : 0; }

/* One row through every layer. p: for each step shift, logscale (c), then the arrays of the coupling's net. */
static void layers(const float *p, const float *x, float *z, int dim, int levels, int depth, int width)
{
    float y[dim], t[dim], a[width], b[width];
    int c = dim, out = 0;
    for (int i = 0; i < dim; i++) y[i] = x[i];
    for (int level = 0; level < levels; level++) {
        if (level) {
            c /= 2;
            for (int i = 0; i < c; i++) z[out++] = y[c + i];
        }
        const int h = c / 2;
        for (int step = 0; step < depth; step++) {
            for (int i = 0; i < c; i++) t[c - 1 - i] = (y[i] + p[i]) * expf(3 * p[c + i]);
            p += 2 * c;
            linear(p, t, a, width, h);
            p += width * h;
            for (int i = 0; i < width; i++) a[i] = relu((a[i] + p[i]) * expf(3 * p[width + i]));
            p += 2 * width;
            linear(p, a, b, width, width);
            p += width * width;
            for (int i = 0; i < width; i++) b[i] = relu((b[i] + p[i]) * expf(3 * p[width + i]));
            p += 2 * width;
            linear(p, b, y, h, width);
            p += h * width;
            for (int i = 0; i < h; i++) t[h + i] += (y[i] + p[i]) * expf(3 * p[h + i]);
            p += 2 * h;
            for (int i = 0; i < c; i++) y[i] = t[i];
        }
    }
    for (int i = 0; i < c; i++) z[out++] = y[i];
}
void run_layers(const float *p, const float *x, float *z, long rows, int dim, int levels, int depth, int width)
{
    for (long r = 0; r < rows; r++) layers(p, x + r * dim, z + r * dim, dim, levels, depth, width);
}

typedef struct {
    const float *m, *s, *U, *c, *G, *B, *d, *V, *S, *t;
    const int32_t *gather, *reads, *writes;
    int dim, steps, width;
} plan;
/* One row through the folded plan; ranges that are zero by structure are left out. */
static void folded(const plan *p, const float *x, float *z)
{
    const int w = p->width, all = p->steps * w;
    float u[p->dim], h[all], a[w];
    for (int i = 0; i < p->dim; i++) u[i] = (x[i] - p->m[i]) * p->s[i];
    for (int i = 0; i < p->dim; i++) z[i] = p->S[i] * u[p->gather[i]] + p->t[i];
    for (int k = 0; k < p->steps; k++) {
        for (int i = 0; i < w; i++) {
            const float *U = p->U + (long)(k * w + i) * p->dim, *G = p->G + (long)(k * w + i) * all;
            float sum = p->c[k * w + i];
            for (int j = p->reads[2 * k]; j < p->reads[2 * k + 1]; j++) sum += U[j] * u[j];
            for (int j = 0; j < k * w; j++) sum += G[j] * h[j];
            a[i] = relu(sum);
        }
        linear(p->B + (long)k * w * w, a, h + k * w, w, w);
        for (int i = 0; i < w; i++) h[k * w + i] = relu(h[k * w + i] + p->d[k * w + i]);
        for (int i = p->writes[2 * k]; i < p->writes[2 * k + 1]; i++) {
            const float *V = p->V + (long)i * all + k * w;
            float sum = 0;
            for (int j = 0; j < w; j++) sum += V[j] * h[k * w + j];
            z[i] += sum;
        }
    }
}
void run_folded(const plan *p, const float *x, float *z, long rows)
{
    for (long r = 0; r < rows; r++) folded(p, x + r * p->dim, z + r * p->dim);
}
