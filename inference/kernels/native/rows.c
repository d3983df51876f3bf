/* Maximum, its index and the logarithm of the sum of exponentials, of rows of logits. */
#include "rows.h"

#include <math.h>

#define PART 8192 /* of a row: 32 KiB, whatever the number of rows and threads */

static int64_t parts_of(int64_t columns) { return (columns + PART - 1) / PART; }

int64_t row_scratch_bytes(int64_t rows, int64_t columns) { return rows * parts_of(columns) * (int64_t)sizeof(Part); }

static PartFunction *part_function(const Library *library) {
#if defined(__x86_64__)
    if (library->isa == ISA_AVX512) return part_of_row_avx512;
    if (library->isa == ISA_AVX2) return part_of_row_avx2;
#endif
    (void)library;
    return part_of_row_baseline;
}

/* The parts in their order. The first NaN wins over all, then the greatest, then the lowest index. */
static void join(const Statistics *s, int64_t row) {
    int64_t count = parts_of(s->columns);
    const Part *parts = s->scratch + row * count;
    Part best = parts[0];
    for (int64_t i = 1; i < count && !isnan(best.maximum); i++)
        if (isnan(parts[i].maximum) || parts[i].maximum > best.maximum)
            best = (Part){.index = i * PART + parts[i].index, .maximum = parts[i].maximum};
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (parts[i].sum > 0) sum += parts[i].sum * exp((double)parts[i].maximum - best.maximum);
    s->indices[row] = best.index;
    s->maxima[row] = best.maximum;
    s->sums[row] = isfinite(best.maximum) ? (float)(best.maximum + log(sum)) : best.maximum;
}

void row_statistics(Worker *worker, const Statistics *s) {
    PartFunction *part_of_row = part_function(worker->library);
    int64_t parts = parts_of(s->columns);
    for (int64_t tile; (tile = pool_near_tile(worker, s->rows * parts)) >= 0;) {
        int64_t row = tile / parts, from = tile % parts * PART;
        int64_t count = s->columns - from < PART ? s->columns - from : PART;
        s->scratch[tile] = part_of_row(s->x + row * s->stride + from, count);
    }
    pool_barrier(worker);
    for (int64_t only; (only = pool_tile(worker, 1)) >= 0;)
        for (int64_t row = 0; row < s->rows; row++) join(s, row);
    pool_barrier(worker);
}

static void statistics_task(Worker *worker, void *argument) { row_statistics(worker, argument); }

EXPORT int64_t parley_row_scratch(int64_t rows, int64_t columns) { return row_scratch_bytes(rows, columns); }

EXPORT void parley_row_statistics(const Library *library, const float *x, int64_t stride, int64_t rows, int64_t columns,
                                  int64_t *indices, float *maxima, float *sums, void *scratch) {
    Statistics s = {x, stride, rows, columns, indices, maxima, sums, scratch};
    pool_run(library, statistics_task, &s, rows * columns > 2 * PART);
}
