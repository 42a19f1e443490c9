#include <math.h>
#include <string.h>

#include "encoder.h"
#include "vector_portable.h"

#define BODY ff_body_portable
#define ATTENTION ff_attention_portable
#define FLOAT ff_float_portable
#define WIDE ff_wide_portable
#define SIZES(X) X(1) X(2) X(3) X(4)
#define WIDE_MR 4
#define WIDE_SIZES(X) X(1) X(2) X(3) X(4)

#include "body.inc"
