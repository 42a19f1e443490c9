/* Products of bytes in C with the compiler's vector extension: weights are widened as they are read. */
#include <math.h>

#include "encoder.h"

#include "encoder_vector_portable.inc"
#include "gemm_common.inc"
#include "gemm_int8.inc"

#define BYTE(w, i) ((w) << (24 - 8 * (i)) >> 24)

#define NAME(x) x##_int8
#define PRODUCT ff_int8_portable
#define ROWS 2
#define ROW_SIZES(X) X(1) X(2)
#define LANE int8_t
#define PER_STEP 4
#define ACC ivec
#define ZERO SET1I(0)
#define LOAD_ACC LOADI
#define STORE_ACC STOREI
#define ADD_ACC ADDI
#define WEIGHTS(b) const ivec b0 = LOADI(b), b1 = LOADI(b + VL)
#define MULTIPLY(x, acc0, acc1) \
    UNROLL for (int i = 0; i < 4; i++) { \
        acc0 += BYTE(b0, i) * SET1I((x)[i]); \
        acc1 += BYTE(b1, i) * SET1I((x)[i]); \
    }
#define RESCALE rescale
#include "gemm_body.inc"
