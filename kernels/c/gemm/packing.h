/* Stored weights into the panels that the products read; checked for NaN, infinity and absurd magnitudes on the way. */
#ifndef FASTFLOW_PACKING_H
#define FASTFLOW_PACKING_H

#include "cpu.h"

enum { FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16, FF_STORED_KINDS };  /* little-endian, of any alignment */
enum { FF_PARTS = 3 };
int ff_stored_size(int stored);  /* bytes of a number */
#define FF_NOT_FINITE 0x7f800000  /* ff_convert: a largest magnitude with at least these bits is infinity or NaN */
#define FF_LARGEST 0x49742400     /* the bits of 1e6: no weight is larger (panels.LARGEST) */

typedef struct {
    const char *parts[FF_PARTS]; /* (part_rows, columns) each, in the dtype `stored` */
    const int32_t *rows;         /* (height): the row of the parts, stacked, that becomes this one; -1: zeros */
    int64_t part_rows, columns, height;
    int64_t groups, padded;      /* a row's columns are in `groups` equal groups, each padded with zeros to `padded` */
    int64_t lanes;               /* elements along k in a step: 1 float32, 2 bfloat16, 4 int8 */
    int64_t spare;               /* steps of zeros at the end of a panel */
    char *panels;                /* [height / panel][groups * padded / lanes + spare][panel][lanes] */
    float *scale;                /* int8: (height), what one unit of a row is worth */
    int32_t *shift;              /* int8: (height), -zero times the row's sum */
    int32_t zero, stored;
    float factor;                /* multiplies the rows of the first part */
    const float *by;             /* int8, in one group: (columns), multiplies each column; NULL: nothing does */
} ff_matrix;

/* Pack `count` matrices into panels of `panel` rows. Float32 is copied, bfloat16 rounded to nearest, ties to even; int8
   has one scale a row, 1/127 of its largest magnitude. bad[i] gets bit p when part p of matrix i holds NaN, infinity or
   a magnitude above FF_LARGEST in a row that is used. The bits do not depend on the threads. count = 0 does nothing. -1: out of memory, else 0. */
int ff_pack(const ff_matrix *matrices, int64_t count, int panel, int32_t *bad, int threads);

/* `count` stored numbers to `to`: float32 (half 0) or IEEE half, to nearest, ties to even (half 1), or nowhere when NULL.
   Returns the bits of the largest magnitude as float32; halves of magnitudes above 65504 are not meaningful. */
int32_t ff_convert(const char *from, int stored, int64_t count, void *to, int half, int threads);

#endif
