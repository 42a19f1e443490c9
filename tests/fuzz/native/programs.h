/* Flows and encoders that record.py laid out, read from the file that FASTFLOW_PROGRAMS names: each array is in memory of its
   own size. */
#ifndef FASTFLOW_PROGRAMS_H
#define FASTFLOW_PROGRAMS_H

#include "encoder/encoder.h"
#include "flow/flow.h"

#include "fuzz.h"

static FILE *programs_open(void)
{
    const char *name = getenv("FASTFLOW_PROGRAMS");
    FILE *file = name ? fopen(name, "rb") : NULL;
    CHECK(file, "FASTFLOW_PROGRAMS must name the file that record.py writes");
    return file;
}

static inline int64_t read_number(FILE *file)
{
    int64_t n;
    CHECK(fread(&n, 8, 1, file) == 1, "the programs are cut short");
    return n;
}

/* An array of the file, its length in bytes first; NULL if that is -1. */
static inline void *read_array(FILE *file)
{
    const int64_t bytes = read_number(file);
    if (bytes < 0)
        return NULL;
    void *to = room((size_t)bytes);
    CHECK(fread(to, 1, (size_t)bytes, file) == (size_t)bytes, "the programs are cut short");
    return to;
}

static inline ff_flow read_flow(FILE *file)
{
    ff_flow f = {.weights = read_array(file), .ops = read_array(file), .table = read_array(file)};
    f.count = (int32_t)read_number(file), f.inputs = (int32_t)read_number(file), f.outputs = (int32_t)read_number(file);
    f.result = (int32_t)read_number(file), f.stride = (int32_t)read_number(file), f.block = (int32_t)read_number(file);
    f.cost = (int32_t)read_number(file), f.isa = (int32_t)read_number(file);
    CHECK(ff_isa_usable(f.isa), "a flow was laid out on another machine");
    return f;
}

/* A flow of the file, which the first call reads. */
static inline ff_flow drawn_flow(source *s)
{
    static ff_flow *flows;
    static int64_t count;
    if (!flows) {
        FILE *file = programs_open();
        count = read_number(file);
        flows = room(sizeof *flows * (size_t)count);
        for (int64_t i = 0; i < count; i++)
            flows[i] = read_flow(file);
        fclose(file);
    }
    return flows[take(s, (int)count - 1)];
}

static inline ff_encoder read_encoder(FILE *file)
{
    ff_encoder e = {.memory = read_array(file), .linears = read_array(file), .steps = read_array(file), .strides = read_array(file)};
    e.positions = read_array(file), e.words = read_array(file), e.token_weights = read_array(file);
    e.half = (int32_t)read_number(file), e.count = (int32_t)read_number(file), e.buffers = (int32_t)read_number(file);
    e.heads = (int32_t)read_number(file), e.head = (int32_t)read_number(file), e.hidden = (int32_t)read_number(file);
    e.outputs = (int32_t)read_number(file), e.position_start = (int32_t)read_number(file), e.pad_id = (int32_t)read_number(file);
    e.vocabulary = (int32_t)read_number(file), e.position_rows = (int32_t)read_number(file);
    e.layers = (int32_t)read_number(file), e.isa = (int32_t)read_number(file);
    CHECK(ff_isa_usable(e.isa), "an encoder was laid out on another machine");  /* asks the system for AMX, too */
    e.eps = (float)read_number(file) * 1e-12f;
    return e;
}

#endif
