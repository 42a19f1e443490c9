#ifndef FASTFLOW_SEARCH_H
#define FASTFLOW_SEARCH_H

#include "cpu.h"

enum { FF_DOTS, FF_HAMMINGS, FF_PRODUCTS };
enum { FF_WIDEST = 65536 };  /* most bytes of a row, so that int8 dot products fit in int32 */

typedef struct {
    const char *rows, *queries;  /* (count, width), (asked, width) bytes */
    char *out;                   /* (asked, count) int32, or float32 for FF_PRODUCTS */
    int64_t count, asked, width;
} ff_scanned;

/* FF_DOTS: int8 dot products, exact. FF_HAMMINGS: numbers of differing bits. FF_PRODUCTS: float32 dot products of D =
   width / 4 <= 2^22 numbers, with an error below D 2^-23 |row| |query|. */
void ff_scan(int isa, int scan, const ff_scanned *what, int threads);

typedef struct {
    const int8_t *rows, *others;       /* codes (count, width) and (.., width), -127 to 127; equal: each pair once */
    const float *scale, *other_scale;  /* (count) and (..), the value of a code's unit */
    const float *least, *slack;        /* (count) and (..): a pair passes if product + slack >= least */
    int64_t count, width, from, to;    /* others [from, to) are compared */
    int32_t *pairs;                    /* (room, 2): row and place among others, in any order */
    int64_t room;
} ff_compared;

/* Write the pairs whose scaled product reaches `least` less `slack`; of equal `rows` and `others` only row < other.
   Float32 rounding changes a product below 2 by at most 2^-20. Returns their number, of which only `room` are written;
   -1: memory is short; -2: no product of int8 is usable. */
int64_t ff_compare(int isa, const ff_compared *what, int threads);

/* One query in this thread: codes (rows, width), query (width) in bytes -> out (rows). */
typedef void ff_scan_body(const void *codes, const void *query, void *out, int64_t rows, int64_t width);
ff_scan_body ff_dots_portable, ff_dots_avx2, ff_dots_avx512, ff_products_portable, ff_products_avx2, ff_products_avx512,
    ff_hammings_portable, ff_hammings_popcnt, ff_dots_neon, ff_dots_dot, ff_products_neon, ff_hammings_neon;

#endif
