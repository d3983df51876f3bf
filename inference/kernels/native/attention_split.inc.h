/* Template (see vector.h): one split of the keys, for some rows. A row is one query of one head.
 *
 * A row's scores, their maximum, the sum of their exponentials and the weighted sum of values are
 * computed in one order, key by key, however many rows share the work. */
#include "attention.h"

#define PAGE_VECTORS (PAGE / LANES)
#define REGISTERS (LANES == 16 ? 32 : 16)
#define SCORE_ROWS (LANES == 16 ? 8 : LANES == 8 ? 4 : 2) /* rows whose scores are computed side by side */
#define VALUE_ROWS 6                                      /* rows whose sums are computed side by side */
#define VALUE_VECTORS (LANES == 16 ? 4 : 2)

/* The keys [from, to) of a split, relative to its beginning, that a query sees; empty: from >= to. */
typedef struct {
    int64_t from, to;
} ISA(Seen);

/* Numbers i... of a page, `narrow`: in bfloat16. ------------------------------------------------- */
INLINE vf ISA(kept)(const void *page, int64_t i, const int narrow) {
    return narrow ? vload_bf16((const uint16_t *)page + i) : vload((const float *)page + i);
}

INLINE vf ISA(kept_part)(const void *page, int64_t i, int64_t n, const int narrow) {
    return narrow ? vload_bf16_part((const uint16_t *)page + i, n) : vload_part((const float *)page + i, n);
}

/* Scores of some rows against some pages of keys. ------------------------------------------------ */
/* While scores are computed the values are fetched, into the second cache; NULL: they have been. */
INLINE void ISA(scores)(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                        float *score, const int rows, const int pages, const int narrow) {
    vf sum[8][4 * PAGE_VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < pages * PAGE_VECTORS; v++) sum[r][v] = vzero();
    for (int64_t d = 0; d < dim; d++) {
        vf key[4 * PAGE_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < pages * PAGE_VECTORS; v++)
            key[v] = ISA(kept)(keys[v / PAGE_VECTORS], d * PAGE + v % PAGE_VECTORS * LANES, narrow);
        if (values && !(narrow && d % 2)) /* a line is 16 numbers, or 32 */
#pragma GCC unroll 16
            for (int p = 0; p < pages; p++)
                __builtin_prefetch((const char *)values[p] + d * PAGE * (narrow ? 2 : 4), 0, 2);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf q = vset1(query[r * dim + d]);
#pragma GCC unroll 16
            for (int v = 0; v < pages * PAGE_VECTORS; v++) sum[r][v] = vfma(q, key[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < pages * PAGE_VECTORS; v++) vstore(score + r * SCORE_STRIDE + v * LANES, sum[r][v]);
}

/* `rows` rows against all of `keys`, several pages at a time. */
INLINE void ISA(score_rows)(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                            int64_t pages, float *score, const int rows, const int narrow) {
    const int fit = REGISTERS / 2 / (rows * PAGE_VECTORS), together = fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    int64_t page = 0;
    for (; page + together <= pages; page += together)
        ISA(scores)(query, dim, keys + page, values ? values + page : NULL, score + page * PAGE, rows, together,
                    narrow);
    for (; together > 1 && page < pages; page++)
        ISA(scores)(query, dim, keys + page, values ? values + page : NULL, score + page * PAGE, rows, 1, narrow);
}

static void ISA(score_split)(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                             int64_t pages, float *score, int64_t rows, int narrow) {
    for (int64_t done; rows > 0; rows -= done, query += done * dim, score += done * SCORE_STRIDE, values = NULL) {
        done = rows < SCORE_ROWS ? rows : SCORE_ROWS;
        switch (done) {
#define ROWS(n) \
    case n: \
        if (narrow) ISA(score_rows)(query, dim, keys, values, pages, score, n, 1); \
        else ISA(score_rows)(query, dim, keys, values, pages, score, n, 0); \
        break;
            ROWS(1) ROWS(2)
#if LANES >= 8
            ROWS(3) ROWS(4)
#endif
#if LANES == 16
            ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
#undef ROWS
        }
    }
}

/* Make one row's scores of a split exponentials; returns their sum, and their maximum beside it. */
static float ISA(exponentials)(float *score, ISA(Seen) seen, float softcap, float *maximum) {
    const vf never = vset1(-__builtin_inff());
    int64_t first = seen.from / LANES * LANES;
    vf largest = never, sum = vzero();
    vf lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = (float)i;
    for (int64_t i = first; i < seen.to; i += LANES) {
        vf s = vload(score + i);
        if (softcap != 0) s = vset1(softcap) * ISA(tanh)(s / vset1(softcap));
        if (i < seen.from || i + LANES > seen.to) {
            vf at = lanes + vset1((float)i);
            s = vselect((at < vset1((float)seen.from)) | (at >= vset1((float)seen.to)), never, s);
        }
        vstore(score + i, s);
        largest = vmax(largest, s);
    }
    *maximum = vhmax(largest);
    const vf most = vset1(*maximum);
    for (int64_t i = first; i < seen.to; i += LANES) {
        vf e = vexp(vload(score + i) - most);
        vstore(score + i, e);
        sum += e;
    }
    return vsum(sum);
}

/* Add the values of the keys [from, to), weighted, to some rows' sums: `vectors` vectors from number d on, of
 * `count` numbers each (less than LANES for the end of a head). Meanwhile the pages `ahead` are fetched. */
INLINE void ISA(values)(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
                        int64_t d, float *sums, const void *const *ahead, int64_t ahead_dim, const int rows,
                        const int vectors, const int64_t count, const int narrow) {
    vf sum[VALUE_ROWS][VALUE_VECTORS];
    const int whole = count == LANES;
    const int64_t ahead_bytes = ahead_dim * (narrow ? 2 : 4); /* a PAGE-th of a page of keys */
    sums += d;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            sum[r][v] = whole ? vload(sums + r * (dim + 2) + v * LANES) : vload_part(sums + r * (dim + 2), count);
    for (int64_t t = from; t < to;) {
        int64_t value = t % PAGE * dim + d;
        const void *page = pages[t / PAGE];
        int64_t end = (t / PAGE + 1) * PAGE < to ? (t / PAGE + 1) * PAGE : to;
        for (; t < end; t++, value += dim) {
            for (int64_t line = 0; ahead && line < ahead_bytes; line += 64)
                __builtin_prefetch((const char *)ahead[t / PAGE] + t % PAGE * ahead_bytes + line, 0, 2);
            vf loaded[VALUE_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                loaded[v] = whole ? ISA(kept)(page, value + v * LANES, narrow)
                                  : ISA(kept_part)(page, value, count, narrow);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                vf w = vset1(weight[r * SCORE_STRIDE + t]);
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) sum[r][v] = vfma(w, loaded[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            if (whole)
                vstore(sums + r * (dim + 2) + v * LANES, sum[r][v]);
            else
                vstore_part(sums + r * (dim + 2), count, sum[r][v]);
}

INLINE void ISA(value_rows)(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
                            float *sums, const void *const *ahead, int64_t ahead_dim, const int rows,
                            const int narrow) {
    for (int64_t d = 0, step; d < dim; d += step, ahead = NULL) {
        int64_t left = dim - d;
        step = left >= VALUE_VECTORS * LANES ? VALUE_VECTORS * LANES : LANES;
        if (step > LANES)
            ISA(values)(weight, pages, from, to, dim, d, sums, ahead, ahead_dim, rows, VALUE_VECTORS, LANES,
                        narrow);
        else if (left >= LANES)
            ISA(values)(weight, pages, from, to, dim, d, sums, ahead, ahead_dim, rows, 1, LANES, narrow);
        else
            ISA(values)(weight, pages, from, to, dim, d, sums, ahead, ahead_dim, rows, 1, left, narrow);
    }
}

static void ISA(weigh_values)(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
                              float *sums, int64_t rows, const void *const *ahead, int64_t ahead_dim, int narrow) {
    if (from >= to) return;
    for (int64_t done; rows > 0; rows -= done, weight += done * SCORE_STRIDE, sums += done * (dim + 2), ahead = NULL) {
        done = rows < VALUE_ROWS ? rows : VALUE_ROWS;
        switch (done) {
#define ROWS(n) \
    case n: \
        if (narrow) ISA(value_rows)(weight, pages, from, to, dim, sums, ahead, ahead_dim, n, 1); \
        else ISA(value_rows)(weight, pages, from, to, dim, sums, ahead, ahead_dim, n, 0); \
        break;
            ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#undef ROWS
        }
    }
}
