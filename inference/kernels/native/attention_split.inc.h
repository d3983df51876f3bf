/* Template (see vector.h): one split of the keys, for some rows. A row is one query of one head.
 *
 * A row's scores, their maximum, the sum of their exponentials and the weighted sum of values are
 * computed in one order, key by key, however many rows share the work. */
#include "attention.h"

#define PAGE_VECTORS (PAGE / LANES)
#if defined(NATIVE_NEON)
#define REGISTERS 32
#define SCORE_ROWS 4 /* rows whose scores are computed side by side */
#else
#define REGISTERS (LANES == 16 ? 32 : 16)
#define SCORE_ROWS (LANES == 16 ? 8 : LANES == 8 ? 4 : 2)
#endif
#define VALUE_ROWS 6                                      /* rows whose sums are computed side by side */
#define VALUE_VECTORS (REGISTERS == 32 ? 4 : 2)

/* Not inlined: attention's own variables left too few registers, so that loops over float32's keys kept a pointer to
 * each row in a vector register, and prompts took 4 % longer. */
#define APART static __attribute__((noinline))

/* The keys [from, to) of a split, relative to its beginning, that a query sees; empty: from >= to. */
typedef struct {
    int64_t from, to;
} ISA(Seen);

/* The numbers in words: pairs in bfloat16 (`narrow`), of which the second is the upper one, or floats. */
INLINE vf ISA(number)(vi word, const int upper, const int narrow) {
    if (!narrow) return (vf)word;
    return upper ? (vf)(word & viset1(-65536)) : (vf)(word << 16);
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
    const int together = narrow ? 2 : 1; /* numbers of a key in a word */
    for (int64_t d = 0; d < dim; d += together) {
        const int64_t line = d / together * PAGE;
        vi key[4 * PAGE_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < pages * PAGE_VECTORS; v++)
            key[v] = viload((const float *)keys[v / PAGE_VECTORS] + line + v % PAGE_VECTORS * LANES);
        if (values)
#pragma GCC unroll 16
            for (int p = 0; p < pages; p++) __builtin_prefetch((const float *)values[p] + line, 0, SOON);
#pragma GCC unroll 16
        for (int i = 0; i < together; i++) {
            if (d + i == dim) break;
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                vf q = vset1(query[r * dim + d + i]);
#pragma GCC unroll 16
                for (int v = 0; v < pages * PAGE_VECTORS; v++)
                    sum[r][v] = vfma(q, ISA(number)(key[v], i, narrow), sum[r][v]);
            }
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

/* With AVX2 of bfloat16's keys alone: float32's have attention_floats.inc.h. */
APART void ISA(score_split)(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                            int64_t pages, float *score, int64_t rows, int narrow) {
    for (int64_t done; rows > 0; rows -= done, query += done * dim, score += done * SCORE_STRIDE, values = NULL) {
        done = rows < SCORE_ROWS ? rows : SCORE_ROWS;
        switch (done) {
#define ROWS(n) \
    case n: \
        if (NATIVE_ISA == 1 || narrow) ISA(score_rows)(query, dim, keys, values, pages, score, n, 1); \
        else ISA(score_rows)(query, dim, keys, values, pages, score, n, 0); \
        break;
            ROWS(1) ROWS(2)
#if LANES >= 8 || defined(NATIVE_NEON)
            ROWS(3) ROWS(4)
#endif
#if LANES == 16
            ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
#undef ROWS
        }
    }
}

/* Add to one row's scores of a split what a slope makes of each key's distance, that of the first being `first`. */
static void ISA(add_distances)(float *score, ISA(Seen) seen, float slope, int64_t first) {
    vf distances;
    for (int i = 0; i < LANES; i++) distances[i] = (float)i;
    for (int64_t i = seen.from / LANES * LANES; i < seen.to; i += LANES)
        vstore(score + i, vload(score + i) + vset1(slope) * (distances + vset1((float)(first + i))));
}

/* Cap one row's scores of a split, make what the row doesn't see of their vectors minus infinity, and return the
 * greatest. */
static float ISA(cap_scores)(float *score, ISA(Seen) seen, float softcap) {
    const vf never = vset1(-__builtin_inff());
    const int64_t first = seen.from / LANES * LANES, last = (seen.to - 1) / LANES * LANES;
    vf lanes, largest = never, other = never;
    if (seen.from >= seen.to) return never[0];
    for (int i = 0; i < LANES; i++) lanes[i] = (float)i;
    for (int64_t i = first; softcap != 0 && i < seen.to; i += LANES)
        vstore(score + i, vset1(softcap) * ISA(tanh)(vload(score + i) / vset1(softcap)));
    if (seen.from > first) {
        const vf at = lanes + vset1((float)first);
        vstore(score + first, vselect(at < vset1((float)seen.from), never, vload(score + first)));
    }
    if (last + LANES > seen.to) {
        const vf at = lanes + vset1((float)last);
        vstore(score + last, vselect(at >= vset1((float)seen.to), never, vload(score + last)));
    }
    int64_t i = first;
    for (; i + LANES < seen.to; i += 2 * LANES) {
        largest = vmax(largest, vload(score + i));
        other = vmax(other, vload(score + i + LANES));
    }
    if (i < seen.to) largest = vmax(largest, vload(score + i));
    return vhmax(vmax(largest, other));
}

/* Make one row's scores exponentials, and return their sum. */
static float ISA(exponentials)(float *score, ISA(Seen) seen, float greatest) {
    vf sum = vzero();
    for (int64_t i = seen.from / LANES * LANES; i < seen.to; i += LANES) {
        vf e = vexp(vload(score + i) - vset1(greatest));
        vstore(score + i, e);
        sum += e;
    }
    return vsum(sum);
}

INLINE void ISA(add_values)(const float *weight, const vi *words, vf sum[VALUE_ROWS][VALUE_VECTORS], const int rows,
                            const int vectors, const int upper, const int narrow) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        vf w = vset1(weight[r * SCORE_STRIDE]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) sum[r][v] = vfma(w, ISA(number)(words[v], upper, narrow), sum[r][v]);
    }
}

/* Add the values of the keys [from, to), weighted, to some rows' sums: `vectors` vectors from number d on, of
 * `count` numbers each (less than LANES for the end of a head). Meanwhile the pages `ahead` are fetched. */
INLINE void ISA(values)(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
                        int64_t d, float *sums, const void *const *ahead, int64_t ahead_dim, const int rows,
                        const int vectors, const int64_t count, const int narrow) {
    vf sum[VALUE_ROWS][VALUE_VECTORS];
    const int whole = count == LANES, together = narrow ? 2 : 1;
    const int64_t ahead_bytes = ahead_dim * 4; /* a PAGE-th of a page of keys, or an eighth */
    sums += d;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            sum[r][v] = whole ? vload(sums + r * (dim + 2) + v * LANES) : vload_part(sums + r * (dim + 2), count);
    for (int64_t page = from / PAGE; page * PAGE < to; page++) {
        int64_t begin = page * PAGE, first = from > begin ? from - begin : 0, end = to - begin < PAGE ? to - begin : PAGE;
        const float *at = (const float *)pages[page] + d;
        for (int64_t t = first / together * together; t < end; t += together) {
            for (int64_t line = 0; ahead && line < ahead_bytes; line += 64)
                __builtin_prefetch((const char *)ahead[page] + t / together * ahead_bytes + line, 0, SOON);
            vi words[VALUE_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                words[v] = (vi)(whole ? vload(at + t / together * dim + v * LANES)
                                      : vload_part(at + t / together * dim, count));
            if (!narrow || t >= first) ISA(add_values)(weight + begin + t, words, sum, rows, vectors, 0, narrow);
            if (narrow && t + 1 < end) ISA(add_values)(weight + begin + t + 1, words, sum, rows, vectors, 1, narrow);
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

APART void ISA(weigh_values)(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
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

/* Combine a row's splits so far (weight 0: none) with the next. ----------------------------------- */
static void ISA(combine)(float *row, const float *next, int64_t dim) {
    if (row[dim + 1] == 0) {
        memcpy(row, next, (size_t)(dim + 2) * sizeof(float));
        return;
    }
    float most = row[dim] < next[dim] ? next[dim] : row[dim];
    float old = vexp(vset1(row[dim] - most))[0], new = vexp(vset1(next[dim] - most))[0];
    vf a = vset1(old), b = vset1(new);
    for (int64_t d = 0; d < dim; d += LANES) {
        vf sum = vfma(vload_part(next + d, dim - d), b, vload_part(row + d, dim - d) * a);
        vstore_part(row + d, dim - d, sum);
    }
    row[dim] = most;
    row[dim + 1] = row[dim + 1] * old + next[dim + 1] * new;
}

static void ISA(finish_row)(const AttentionCall *call, float *row, int64_t head, float *out) {
    int64_t dim = call->cache.value_dim;
    if (call->how.sinks) {
        float sink = call->how.sinks[head], most = row[dim] < sink ? sink : row[dim];
        float scale = vexp(vset1(row[dim] - most))[0];
        row[dim + 1] = row[dim + 1] * scale + vexp(vset1(sink - most))[0];
        for (int64_t d = 0; d < dim; d += LANES)
            vstore_part(row + d, dim - d, vload_part(row + d, dim - d) * vset1(scale));
    }
    vf weight = vset1(row[dim + 1]);
    for (int64_t d = 0; d < dim; d += LANES) vstore_part(out + d, dim - d, vload_part(row + d, dim - d) / weight);
}
