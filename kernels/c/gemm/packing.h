/* Packs stored weights into panels, checked for NaN, infinity and absurd magnitudes. */
#ifndef FASTFLOW_PACKING_H
#define FASTFLOW_PACKING_H

#include "cpu.h"

enum { FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16, FF_STORED_KINDS };  /* little-endian, any alignment */
enum { FF_PARTS = 3 };         /* at most: queries, keys and values */
int ff_stored_size(int stored);  /* bytes of a number */
#define FF_NOT_FINITE 0x7f800000  /* ff_convert: bits of a largest magnitude at or above this mean infinity or NaN */
#define FF_LARGEST 0x49742400     /* the bits of 1e6 (panels.LARGEST), the largest weight */

typedef struct {
    const char *parts[FF_PARTS]; /* (part_rows, columns) each, in the dtype `stored` */
    const int32_t *rows;         /* (height): row of the stacked parts; -1: zeros */
    int64_t part_rows, columns, height;
    int64_t groups, padded;      /* a row's columns are equal groups, each padded with zeros to `padded` */
    int64_t lanes;               /* elements along k in a step: 1 float32, 2 bfloat16, 4 int8 */
    int64_t spare;               /* steps of zeros at the end of a panel */
    char *panels;                /* [height / panel][groups * padded / lanes + spare][panel][lanes] */
    float *scale;                /* int8: (height), the value of a row's unit */
    int32_t *shift;              /* int8: (height), -zero times the row's sum */
    int32_t zero, stored;
    float factor;                /* multiplies the rows of the first part */
    const float *by;             /* int8, in one group: (columns) factors; NULL: 1 */
} ff_matrix;

/* Pack matrices (count) into panels of `panel` rows. bfloat16 is rounded to nearest even; int8 has one scale a row.
   bad (count): bit p of bad[i] is set if part p of matrix i has NaN, infinity or a magnitude above FF_LARGEST in a
   used row. Returns -1 if memory is short, else 0. */
int ff_pack(const ff_matrix *matrices, int64_t count, int panel, int32_t *bad, int threads);

/* Convert stored numbers (count) to `to` (count): float32, or IEEE half rounded to nearest even; NULL: check only.
   Returns the bits of the largest magnitude; halves are wrong above 65504. */
int32_t ff_convert(const char *from, int stored, int64_t count, void *to, int half, int threads);

#endif
