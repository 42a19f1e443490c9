#include "table.h"
#include "vector_portable.h"

static inline vec widen_bytes(const char *p)
{
    const signed char *b = (const signed char *)p;
    return (vec){b[0], b[1], b[2], b[3]};
}

#define BODY ff_table_portable
#define WIDEN_BYTES(p) widen_bytes(p)
#include "body.inc"
