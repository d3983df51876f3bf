/* The template of linears of many rows with AVX2: a slice of a panel is made float32 once, and multiplied from the
 * first cache by all rows. Products are added in the same order as everywhere.
 *
 * Beside weights that the first block of rows widened while it multiplied, and the others read from the second cache
 * (Zen 3, medians by shape): float32, whose blocks had each fetched anew, is 1.1 to 1.35 times as fast with 13 to 48
 * rows; bfloat16 0.9 to 1.2 with 7 to 12 rows, 1.02 to 1.26 with more; in 12 bits 1.02 to 1.14. It is more while
 * another machine uses the same core's caches. */

#define NEAR_DEPTH 320 /* of k at most: slices of 192 were 3 % slower, of 384 and 576 not faster */
#define NEAR_COLUMNS (2 * LANES)
#define NEAR_GROUPS (PANEL / NEAR_COLUMNS)
#define NEAR_STEP 4 /* of k: for each one or two lines are fetched of what comes next */

typedef float NearSlice[NEAR_GROUPS][NEAR_DEPTH][NEAR_COLUMNS]; /* a group of columns lies by itself */

typedef struct Near {
    const float *x; /* at the slice's first k */
    int64_t x_stride, k;
    const float (*w)[NEAR_COLUMNS];
    float *y;
    int64_t y_stride;
    const float *bias; /* of these columns, if this is the last slice; or NULL */
    const char *share; /* of the next slice or panel, what these rows and columns fetch */
    int64_t share_step;
    int first;
} Near;

/* Whether the slice pays: two blocks of rows read float32's panel as fast as it can be copied. */
INLINE int multiplies_near(const int kind, int64_t blocks) {
    return blocks >= (kind == KIND_FLOAT32 ? 3 : kind == KIND_INT8 ? 4 : 2);
}

/* Of slices that are about equally deep, in whole steps. */
INLINE int64_t near_depth(int64_t k, int64_t most) {
    const int64_t steps = (k + most - 1) / most * NEAR_STEP;
    return (k + steps - 1) / steps * NEAR_STEP;
}

/* A block of rows of about equal height, and a group of columns: all blocks of a group after each other. */
typedef struct NearPass {
    int64_t from, to, group, column;
} NearPass;

INLINE NearPass near_pass(const Tile *t, int64_t panel, int64_t blocks, int64_t pass) {
    const int64_t rows = t->row_to - t->row_from, block = pass % blocks, group = pass / blocks;
    return (NearPass){
        .from = t->row_from + rows * block / blocks,
        .to = t->row_from + rows * (block + 1) / blocks,
        .group = group,
        .column = panel * PANEL + group * NEAR_COLUMNS,
    };
}

INLINE void widen_one(const vf *wide, int64_t k, NearSlice slice) {
    UNROLL for (int v = 0; v < PANEL / LANES; v++) vstore(slice[v / 2][k] + v % 2 * LANES, wide[v]);
}

/* Words of two k, in the order of bfloat16's panel. */
INLINE void widen_pair(const vi *words, int64_t k, NearSlice slice) {
    vf lower[PANEL / LANES], upper[PANEL / LANES];
    UNROLL for (int v = 0; v < PANEL / LANES; v++) {
        lower[v] = (vf)(words[v] << 16);
        upper[v] = (vf)(words[v] & viset1(-65536));
    }
    widen_one(lower, k, slice);
    widen_one(upper, k + 1, slice);
}

INLINE void widen_quads(const char *w, int base, const Exception *exception, int64_t quad, int64_t length,
                        NearSlice slice) {
    const vi table = table_of(base);
    for (int64_t k = 0; k < length; k += QUAD, quad++, w += QUAD_BYTES) {
        vi words[2 * PAIR_VECTORS];
        decode(PAIR_VECTORS, w, 0, table, words);
        if (__builtin_expect(exception->at / QUAD_WEIGHTS == quad, 0))
            exception = correct(PAIR_VECTORS, exception, quad, 0, words);
        widen_pair(words, k, slice);
        widen_pair(words + PAIR_VECTORS, k + 2, slice);
    }
}

/* The weights at `w` on as float32; and where k ends within a group of them, the zeros behind it. */
INLINE void widen_slice(const int kind, const char *w, int64_t length, NearSlice slice) {
    if (kind == KIND_BFLOAT16) {
        for (int64_t k = 0; k < length; k += 2, w += 4 * PANEL) {
            vi words[PAIR_VECTORS];
            UNROLL for (int v = 0; v < PAIR_VECTORS; v++) words[v] = viload(w + 4 * v * LANES);
            widen_pair(words, k, slice);
        }
        return;
    }
    const int64_t bytes = kind == KIND_FLOAT16 ? 2 : 4;
    for (int64_t k = 0; k < length; k++, w += bytes * PANEL) {
        vf wide[PANEL / LANES];
        UNROLL for (int v = 0; v < PANEL / LANES; v++) {
            const char *at = w + bytes * v * LANES;
            wide[v] = kind == KIND_FLOAT16 ? vload_f16((const uint16_t *)at) : vload((const float *)at);
        }
        widen_one(wide, k, slice);
    }
}

/* Products of one k. Rows are found by two pointers and a stride. */
INLINE void near_add(const int rows, const float *x, const float *lower, int64_t stride, const float *w,
                     vf sums[MOST_ROWS][2]) {
    const int half = (rows + 1) / 2;
    const vf a = vload(w), b = vload(w + LANES);
    UNROLL for (int m = 0; m < rows; m++) {
        const vf one = vset1(*(m < half ? x + m * stride : lower + (m - half) * stride));
        sums[m][0] = vfma(one, a, sums[m][0]);
        sums[m][1] = vfma(one, b, sums[m][1]);
    }
}

/* The compiler is kept from multiplying the stride out: it then has an offset for each row and k, in memory. */
INLINE void multiply_near_rows(const int rows, const Near *n) {
    vf sums[MOST_ROWS][2];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) sums[m][v] = n->first ? vzero() : vload(n->y + m * n->y_stride + v * LANES);
    const float *x = n->x, *lower = x + (rows + 1) / 2 * n->x_stride, *w = *n->w;
    const char *share = n->share;
    int64_t stride = n->x_stride, left = n->k;
    for (; left >= NEAR_STEP; left -= NEAR_STEP, share += n->share_step) {
        __builtin_prefetch(share, 0, 2);
        if (n->share_step > 64) __builtin_prefetch(share + 64, 0, 2); /* float32, three blocks */
        UNROLL for (int i = 0; i < NEAR_STEP; i++) {
            __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
            near_add(rows, x + i, lower + i, stride, w + i * NEAR_COLUMNS, sums);
        }
        x += NEAR_STEP, lower += NEAR_STEP, w += NEAR_STEP * NEAR_COLUMNS;
    }
    for (; left > 0; left--, x++, lower++, w += NEAR_COLUMNS) near_add(rows, x, lower, stride, w, sums);
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) {
            if (n->bias) sums[m][v] += vload(n->bias + v * LANES);
            vstore(n->y + m * n->y_stride + v * LANES, sums[m][v]);
        }
}

/* By themselves: within another function they have too few registers. */
#define DEFINE_NEAR(rows) \
    static __attribute__((noinline)) void near_##rows(const Near *n) { multiply_near_rows(rows, n); }
DEFINE_NEAR(3)
DEFINE_NEAR(4)
DEFINE_NEAR(5)
DEFINE_NEAR(6)

/* A whole panel, all rows of the tile: blocks of about equal height. */
INLINE void multiply_near(const int kind, const Tile *t, int64_t panel, int64_t blocks) {
    static void (*const near[])(const Near *) = {NULL, NULL, NULL, near_3, near_4, near_5, near_6};
    const Linear *linear = t->linear;
    const int64_t depth = near_depth(linear->k, NEAR_DEPTH), passes = blocks * NEAR_GROUPS;
    const int64_t share = depth * t->panel_step / passes;
    const Exception *exceptions = is_coded(kind) ? linear->exceptions + linear->firsts[panel] : NULL;
    NearSlice slice __attribute__((aligned(64)));
    for (int64_t k = 0; k < linear->k; k += depth) {
        const char *w = t->w + panel * t->panel_bytes + k * t->panel_step;
        int64_t length = linear->k - k < depth ? linear->k - k : depth;
        while (is_coded(kind) && exceptions->at / QUAD_WEIGHTS < k / QUAD) exceptions++;
        if (is_coded(kind))
            widen_quads(w, linear->bases[panel], exceptions, k / QUAD, length, slice);
        else
            widen_slice(kind, w, length, slice);
        for (int64_t pass = 0; pass < passes; pass++) {
            const NearPass p = near_pass(t, panel, blocks, pass);
            Near n = {
                .x = (const float *)row_of(t->x, t->x_stride, (int)p.from) + k,
                .x_stride = t->x_stride / (int64_t)sizeof(float),
                .k = length,
                .w = (const float(*)[NEAR_COLUMNS])slice[p.group],
                .y = t->y + p.from * t->y_stride + p.column,
                .y_stride = t->y_stride,
                .bias = linear->bias && k + depth >= linear->k ? linear->bias + p.column : NULL,
                .share = w + length * t->panel_step + pass * share,
                .share_step = share * NEAR_STEP / depth,
                .first = k == 0,
            };
            near[p.to - p.from](&n);
        }
    }
}
