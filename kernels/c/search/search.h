/* Codes of rows against the code of a query: exact integers, whatever the instruction set and the threads. */
#ifndef FASTFLOW_SEARCH_H
#define FASTFLOW_SEARCH_H

#include "cpu.h"

enum { FF_DOTS, FF_HAMMINGS, FF_SCANS };
enum { FF_WIDEST = 65536 };  /* bytes of a code: a sum of as many products of bytes fits in 31 bits */

/* codes (rows, width) bytes and query (width) -> out (rows): dot products of int8, or the number of bits that differ. */
void ff_scan(int isa, int scan, const void *codes, const void *query, int32_t *out, int64_t rows, int64_t width, int threads);

/* portable.c ...: the same in this thread. */
typedef void (*ff_scan_body)(const void *codes, const void *query, int32_t *out, int64_t rows, int64_t width);
void ff_dots_portable(const void *, const void *, int32_t *, int64_t, int64_t);
void ff_dots_avx2(const void *, const void *, int32_t *, int64_t, int64_t);
void ff_dots_avx512(const void *, const void *, int32_t *, int64_t, int64_t);
void ff_hammings_portable(const void *, const void *, int32_t *, int64_t, int64_t);
void ff_hammings_popcnt(const void *, const void *, int32_t *, int64_t, int64_t);

#endif
