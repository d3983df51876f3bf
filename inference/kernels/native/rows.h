/* Between rows.c and the copies of rows.inc.h. */
#ifndef PARLEY_ROWS_H
#define PARLEY_ROWS_H

#include "native.h"

/* Of a part of a row: `sum` is of e^(x - maximum). A part with NaN has the maximum NaN at the first of them. */
typedef struct Part {
    int64_t index;
    float maximum, sum;
} Part;

/* Of each row: the index of its maximum, the maximum, and the logarithm of the sum of exponentials. */
typedef struct Statistics {
    const float *x; /* (rows, columns) */
    int64_t stride, rows, columns;
    int64_t *indices;
    float *maxima, *sums;
    Part *scratch; /* row_scratch_bytes */
} Statistics;

int64_t row_scratch_bytes(int64_t rows, int64_t columns);
void row_statistics(Worker *worker, const Statistics *s); /* inside a task: two phases */

typedef Part PartFunction(const float *x, int64_t count);
PartFunction part_of_row_baseline, part_of_row_avx2, part_of_row_avx512;

#endif
