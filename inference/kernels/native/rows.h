/* Between rows.c and the copies of rows.inc.h. */
#ifndef PARLEY_ROWS_H
#define PARLEY_ROWS_H

#include "native.h"

/* Of a part of a row: `sum` is of e^(x - maximum). A part with NaN has the maximum NaN at the first of them. */
typedef struct Part {
    int64_t index;
    float maximum, sum;
} Part;

typedef Part PartFunction(const float *x, int64_t count);
PartFunction part_of_row_baseline, part_of_row_avx2, part_of_row_avx512;

#endif
