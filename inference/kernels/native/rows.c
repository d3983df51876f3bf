/* Maximum, its index and the logarithm of the sum of exponentials, of rows of logits. */
#include "rows.h"

#include <math.h>

#define PART 8192 /* of a row: 32 KiB, whatever the number of rows and threads */

typedef struct Statistics {
    const float *x;
    int64_t stride, rows, columns, parts; /* parts of a row */
    int64_t *indices;
    float *maxima, *sums;
    Part *scratch; /* (rows, parts) */
} Statistics;

static PartFunction *part_function(const Library *library) {
#if defined(__x86_64__)
    if (library->isa == ISA_AVX512) return part_of_row_avx512;
    if (library->isa == ISA_AVX2) return part_of_row_avx2;
#endif
    (void)library;
    return part_of_row_baseline;
}

/* The parts in their order. The first NaN wins over all, then the greatest, then the lowest index. */
static void join(Statistics *s, int64_t row) {
    const Part *parts = s->scratch + row * s->parts;
    Part best = parts[0];
    for (int64_t i = 1; i < s->parts && !isnan(best.maximum); i++)
        if (isnan(parts[i].maximum) || parts[i].maximum > best.maximum)
            best = (Part){.index = i * PART + parts[i].index, .maximum = parts[i].maximum};
    double sum = 0;
    for (int64_t i = 0; i < s->parts; i++)
        if (parts[i].sum > 0) sum += parts[i].sum * exp((double)parts[i].maximum - best.maximum);
    s->indices[row] = best.index;
    s->maxima[row] = best.maximum;
    s->sums[row] = isfinite(best.maximum) ? (float)(best.maximum + log(sum)) : best.maximum;
}

static void statistics(Worker *worker, void *argument) {
    Statistics *s = argument;
    PartFunction *part_of_row = part_function(worker->library);
    for (int64_t tile; (tile = pool_tile(worker, s->rows * s->parts)) >= 0;) {
        int64_t row = tile / s->parts, from = tile % s->parts * PART;
        int64_t count = s->columns - from < PART ? s->columns - from : PART;
        s->scratch[tile] = part_of_row(s->x + row * s->stride + from, count);
    }
    pool_barrier(worker);
    for (int64_t only; (only = pool_tile(worker, 1)) >= 0;)
        for (int64_t row = 0; row < s->rows; row++) join(s, row);
    pool_barrier(worker);
}

EXPORT int64_t parley_row_scratch(int64_t rows, int64_t columns) {
    return rows * ((columns + PART - 1) / PART) * (int64_t)sizeof(Part);
}

EXPORT void parley_row_statistics(const Library *library, const float *x, int64_t stride, int64_t rows, int64_t columns,
                                  int64_t *indices, float *maxima, float *sums, void *scratch) {
    Statistics s = {x, stride, rows, columns, (columns + PART - 1) / PART, indices, maxima, sums, scratch};
    pool_run(library, statistics, &s, rows * columns > 2 * PART);
}
