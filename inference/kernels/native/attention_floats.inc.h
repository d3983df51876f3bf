/* The template of scores against float32's keys with AVX2; attention_split.inc.h has the others, which add in the same
 * order. Six rows are computed side by side, not four, and each number of rows in a function of its own: of 24 rows the
 * scores take three quarters of the time (Zen 3). */

#define FLOAT_ROWS 6
#define FLOAT_SCORES(name) \
    void name(const float *query, int64_t dim, const void *const *keys, const void *const *values, int64_t pages, \
              float *score)

/* Some rows against some pages, whose values are fetched meanwhile. Rows are found by two pointers and a stride, which
 * the compiler is kept from multiplying out: it then has an offset for each row, in memory. */
INLINE void some_float_scores(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                              float *score, const int rows, const int pages) {
    const int vectors = pages * PAGE_VECTORS, half = (rows + 1) / 2;
    vf sum[FLOAT_ROWS][4 * PAGE_VECTORS];
    const float *lower = query + half * dim;
    int64_t stride = dim;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = vzero();
    for (int64_t line = 0; line < dim * PAGE; line += PAGE, query++, lower++) {
        vf key[4 * PAGE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            key[v] = vload((const float *)keys[v / PAGE_VECTORS] + line + v % PAGE_VECTORS * LANES);
        UNROLL for (int p = 0; p < pages; p++) __builtin_prefetch((const float *)values[p] + line, 0, 2);
        __asm__("" : "+r"(query), "+r"(lower), "+r"(stride));
        UNROLL for (int r = 0; r < rows; r++) {
            vf q = vset1(*(r < half ? query + r * stride : lower + (r - half) * stride));
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = vfma(q, key[v], sum[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) vstore(score + r * SCORE_STRIDE + v * LANES, sum[r][v]);
}

#define DEFINE_FLOAT_SCORES(rows, together)                                                                    \
    APART FLOAT_SCORES(float_scores_##rows) {                                                                  \
        for (; pages >= together; pages -= together, keys += together, values += together, score += together * PAGE) \
            some_float_scores(query, dim, keys, values, score, rows, together);                                \
        for (; pages > 0; pages--, keys++, values++, score += PAGE)                                            \
            some_float_scores(query, dim, keys, values, score, rows, 1);                                       \
    }
DEFINE_FLOAT_SCORES(1, 4)
DEFINE_FLOAT_SCORES(2, 2)
DEFINE_FLOAT_SCORES(3, 1)
DEFINE_FLOAT_SCORES(4, 1)
DEFINE_FLOAT_SCORES(5, 1)
DEFINE_FLOAT_SCORES(6, 1)

/* As score_split. The rows after the first ones fetch keys, which are near, in place of values that have been. */
static void score_floats(const float *query, int64_t dim, const void *const *keys, const void *const *values,
                         int64_t pages, float *score, int64_t rows) {
    static FLOAT_SCORES((*const of[])) = {NULL,           float_scores_1, float_scores_2, float_scores_3,
                                          float_scores_4, float_scores_5, float_scores_6};
    for (int64_t done; rows > 0; rows -= done, query += done * dim, score += done * SCORE_STRIDE, values = keys) {
        done = rows < FLOAT_ROWS ? rows : FLOAT_ROWS;
        of[done](query, dim, keys, values, pages, score);
    }
}
