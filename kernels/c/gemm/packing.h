/* Pack stored weights into panels; find NaN, infinity and huge magnitudes. */
#ifndef FASTFLOW_PACKING_H
#define FASTFLOW_PACKING_H

#include "cpu.h"

enum { FF_STORED_FLOAT, FF_STORED_HALF, FF_STORED_BF16, FF_STORED_KINDS };  /* little-endian, any alignment */
enum { FF_PARTS = 3 };         /* most matrices stacked into one: queries, keys and values */
int ff_stored_size(int stored);
#define FF_NOT_FINITE 0x7f800000  /* bits of infinity; NaN has larger ones */
#define FF_LARGEST 0x49742400     /* bits of 1e6 (stored.LARGEST), the largest weight */

typedef struct {
    const char *parts[FF_PARTS]; /* (part_rows, columns) each, of type `stored` */
    const int32_t *rows;         /* (height): each row's place in the stacked parts; -1: zeros */
    int64_t part_rows, columns, height;
    int64_t groups, padded;      /* a row is `groups` equal groups of columns, each padded with zeros to `padded` */
    int64_t lanes;               /* elements per step: 1 float32, 2 bfloat16, 4 int8 */
    int64_t together;            /* adjacent steps of a row in a panel (ff_steps_together) */
    int64_t spare;               /* steps of zeros at the end of each panel */
    char *panels;                /* [height / panel][(groups * padded / lanes + spare) / together][panel][together][lanes] */
    float *scale;                /* int8: (height), the value of a weight's unit */
    int32_t *shift;              /* int8: (height), -zero * sum of the row */
    int32_t zero, stored;
    float factor;                /* multiplies rows of the first part */
    const float *by;             /* int8: (columns) factors; NULL: all 1 */
} ff_matrix;

/* Pack matrices (count) into panels of `panel` rows; int8 has one scale per row. bad (count): bit p is set if part p
   has a row with NaN or a magnitude above FF_LARGEST. Returns -1 if memory is short. */
int ff_pack(const ff_matrix *matrices, int64_t count, int panel, int32_t *bad, int threads);

/* Convert stored numbers (count) to `to` (count), float32 or IEEE half; NULL: only check. Returns the bits of the
   largest magnitude; above 65504, halves are wrong. */
int32_t ff_convert(const char *from, int stored, int64_t count, void *to, int half, int threads);

#endif
