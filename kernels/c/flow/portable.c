#include <math.h>

#include "flow.h"
#include "vector_portable.h"

#define SIZES(X) X(2) X(3) X(4)
#define NAME ff_flow_portable
#include "body.inc"
