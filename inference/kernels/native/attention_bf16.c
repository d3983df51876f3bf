/* Scores and weighted values of bfloat16 for AVX-512 BF16: two products of a pair in one instruction. */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#define NATIVE_BF16
#include "vector.h"

#include "attention.h"
#include "inputs.inc.h"

#define SCORE_ROWS 8 /* rows whose scores are computed side by side, against as many pages as registers are left for */
#define VALUE_ROWS 6 /* rows whose sums are computed side by side */
#define VALUE_VECTORS 4
#define UNROLL _Pragma("GCC unroll 16")

INLINE vf add_products(vf sum, vi a, vi b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

INLINE vi pair_of(const void *words, int64_t first) {
    int32_t pair;
    memcpy(&pair, (const uint16_t *)words + first, sizeof pair);
    return viset1(pair);
}

void round_query_avx512(const float *query, int64_t dim, uint16_t *rounded) { round_row(query, dim, rounded); }

/* Scores: a row of `stride` numbers against the `pages`, whose values are fetched meanwhile. ------ */
INLINE void score_block(const uint16_t *query, int64_t stride, int64_t dim, const void *const *keys,
                        const void *const *values, float *score, const int rows, const int pages) {
    vf sum[SCORE_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < pages; p++) sum[r][p] = vzero();
    for (int64_t d = 0; d < dim; d += 2) {
        vi key[4];
        UNROLL for (int p = 0; p < pages; p++) key[p] = viload((const uint16_t *)keys[p] + d * PAGE);
        if (values)
            UNROLL for (int p = 0; p < pages; p++) __builtin_prefetch((const uint16_t *)values[p] + d * PAGE, 0, SOON);
        UNROLL for (int r = 0; r < rows; r++) {
            vi pair = pair_of(query, r * stride + d);
            UNROLL for (int p = 0; p < pages; p++) sum[r][p] = add_products(sum[r][p], key[p], pair);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < pages; p++) vstore(score + r * SCORE_STRIDE + p * PAGE, sum[r][p]);
}

INLINE void score_rows(const uint16_t *query, const Cache *cache, const void *const *keys, const void *const *values,
                       int64_t pages, float *score, const int rows) {
    const int together = rows > 6 ? 2 : 4;
    const int64_t stride = query_numbers(cache), dim = cache->key_dim;
    int64_t page = 0;
    for (; page + together <= pages; page += together)
        score_block(query, stride, dim, keys + page, values ? values + page : NULL, score + page * PAGE, rows,
                    together);
    for (; page < pages; page++)
        score_block(query, stride, dim, keys + page, values ? values + page : NULL, score + page * PAGE, rows, 1);
}

void score_rounded_avx512(const uint16_t *query, const Cache *cache, const void *const *keys,
                          const void *const *values, int64_t pages, float *score, int64_t rows) {
    for (int64_t done; rows > 0; rows -= done, values = NULL) {
        done = rows < SCORE_ROWS ? rows : SCORE_ROWS;
        switch (done) {
#define ROWS(n) \
    case n: score_rows(query, cache, keys, values, pages, score, n); break;
            ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
        }
        query += done * query_numbers(cache);
        score += done * SCORE_STRIDE;
    }
}

/* Weights. ---------------------------------------------------------------------------------------- */
/* e^x where x isn't positive, within 4e-6 of it, and 1 for 0: what is rounded to bfloat16 needs no more, and takes 10
 * instructions in place of vexp's 14. 2^f, of the rest f that x log2(e) leaves to an integer, is the polynomial with the least
 * relative error on [-0.5, 0.5] of those that give 1 for 0; what is less than float32's least number is 0. */
INLINE vf exponential(vf x) {
    const vf held = vmax(vset1(-200.0f), x), n = vexponent(held), f = vfma(held, vset1(LOG2_E), vzero() - n);
    vf p = vset1(9.58285294e-3f);
    p = vfma(p, f, vset1(5.59064262e-2f));
    p = vfma(p, f, vset1(2.40240991e-1f));
    p = vfma(p, f, vset1(6.93124175e-1f));
    p = vfma(p, f, vset1(1.0f));
    return vscale(p, n);
}

/* A word is never written before its float, and those behind it, have been read. */
INLINE void store_rounded(float *score, int64_t i, vf e) {
    _mm256_storeu_si256((__m256i *)((uint16_t *)score + i), (__m256i)_mm512_cvtneps_pbh(e));
}

float rounded_exponentials_avx512(float *score, int64_t from, int64_t to, float greatest) {
    const vf most = vset1(greatest);
    vf sum = vzero(), other = vzero();
    int64_t i = from / LANES * LANES;
    for (; i + LANES < to; i += 2 * LANES) {
        const vf e = exponential(vload(score + i) - most), next = exponential(vload(score + i + LANES) - most);
        store_rounded(score, i, e);
        store_rounded(score, i + LANES, next);
        sum += e;
        other += next;
    }
    if (i < to) {
        const vf e = exponential(vload(score + i) - most);
        store_rounded(score, i, e);
        sum += e;
    }
    return vsum(sum + other);
}

/* Values: pairs of positions; of a pair that is seen by half the other value is nothing. ---------- */
INLINE void weigh_block(const float *weight, const void *const *pages, int64_t from, int64_t to, int64_t dim,
                        int64_t d, float *sums, const void *const *ahead, int64_t ahead_bytes, const int rows,
                        const int vectors, const int64_t count) {
    vf sum[VALUE_ROWS][VALUE_VECTORS];
    sums += d;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = vload_part(sums + r * (dim + 2) + v * LANES, count);
    for (int64_t t = from / 2 * 2; t < to; t += 2) {
        const float *words = (const float *)pages[t / PAGE] + t % PAGE / 2 * dim + d;
        for (int64_t line = 0; ahead && line < 2 * ahead_bytes; line += 64)
            __builtin_prefetch((const char *)ahead[t / PAGE] + t % PAGE * ahead_bytes + line, 0, SOON);
        vi value[VALUE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) value[v] = (vi)vload_part(words + v * LANES, count);
        if (__builtin_expect(t < from || t + 2 > to, 0))
            UNROLL for (int v = 0; v < vectors; v++) value[v] &= viset1(t < from ? -65536 : 65535);
        UNROLL for (int r = 0; r < rows; r++) {
            vi pair = pair_of(weight + r * SCORE_STRIDE, t);
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = add_products(sum[r][v], value[v], pair);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) vstore_part(sums + r * (dim + 2) + v * LANES, count, sum[r][v]);
}

INLINE void weigh_rows(const float *weight, const Cache *cache, const void *const *pages, int64_t from, int64_t to,
                       float *sums, const void *const *ahead, const int rows) {
    const int64_t dim = cache->value_dim, ahead_bytes = key_numbers(cache) * 2;
    for (int64_t d = 0, step; d < dim; d += step, ahead = NULL) {
        int64_t left = dim - d;
        step = left >= VALUE_VECTORS * LANES ? VALUE_VECTORS * LANES : LANES;
        if (step > LANES)
            weigh_block(weight, pages, from, to, dim, d, sums, ahead, ahead_bytes, rows, VALUE_VECTORS, LANES);
        else if (left >= LANES)
            weigh_block(weight, pages, from, to, dim, d, sums, ahead, ahead_bytes, rows, 1, LANES);
        else
            weigh_block(weight, pages, from, to, dim, d, sums, ahead, ahead_bytes, rows, 1, left);
    }
}

void weigh_rounded_avx512(const float *weight, const Cache *cache, const void *const *pages, int64_t from, int64_t to,
                          float *sums, int64_t rows, const void *const *ahead) {
    if (from >= to) return;
    for (int64_t done; rows > 0; rows -= done, ahead = NULL) {
        done = rows < VALUE_ROWS ? rows : VALUE_ROWS;
        switch (done) {
#define ROWS(n) \
    case n: weigh_rows(weight, cache, pages, from, to, sums, ahead, n); break;
            ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#undef ROWS
        }
        weight += done * SCORE_STRIDE;
        sums += done * (cache->value_dim + 2);
    }
}
#endif
