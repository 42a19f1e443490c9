#include <math.h>

#include "gemm.h"
#include "vector_portable.h"

#define BYTE(w, i) ((w) << (24 - 8 * (i)) >> 24)

#define PRODUCT ff_int8_portable
#define ROWS 2  /* 4 of 16 registers hold sums */
#define ROW_SIZES(X) X(1) X(2)
#define LANE int8_t
#define PER_STEP 4
#define MULTIPLY(x, acc0, acc1) \
    UNROLL for (int i = 0; i < 4; i++) { \
        acc0 += BYTE(b0, i) * SET1I((x)[i]); \
        acc1 += BYTE(b1, i) * SET1I((x)[i]); \
    }
#include "int8.inc"
