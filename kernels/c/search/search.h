/* Rows against queries. Results for codes are exact integers. */
#ifndef FASTFLOW_SEARCH_H
#define FASTFLOW_SEARCH_H

#include "cpu.h"

enum { FF_DOTS, FF_HAMMINGS, FF_PRODUCTS };
enum { FF_WIDEST = 65536 };  /* bytes of a code: 65536 products of at most 2^14 fit in 31 bits */

typedef struct {
    const char *rows, *queries;  /* (count, width) and (asked, width) bytes */
    char *out;                   /* (asked, count) results of 4 bytes */
    int64_t count, asked, width;
} ff_scanned;

/* FF_DOTS: int8 dot products. FF_HAMMINGS: numbers of differing bits. FF_PRODUCTS: float32 dot products (D = width /
   4), with an error of at most D 2^-23 times both lengths, D <= 2^22. */
void ff_scan(int isa, int scan, const ff_scanned *what, int threads);

/* One query in this thread: codes (rows, width) and query (width) in bytes -> out (rows). */
typedef void (*ff_scan_body)(const void *codes, const void *query, void *out, int64_t rows, int64_t width);
void ff_dots_portable(const void *, const void *, void *, int64_t, int64_t);
void ff_dots_avx2(const void *, const void *, void *, int64_t, int64_t);
void ff_dots_avx512(const void *, const void *, void *, int64_t, int64_t);
void ff_products_portable(const void *, const void *, void *, int64_t, int64_t);
void ff_products_avx2(const void *, const void *, void *, int64_t, int64_t);
void ff_products_avx512(const void *, const void *, void *, int64_t, int64_t);
void ff_hammings_portable(const void *, const void *, void *, int64_t, int64_t);
void ff_hammings_popcnt(const void *, const void *, void *, int64_t, int64_t);

#endif
