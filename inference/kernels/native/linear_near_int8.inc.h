/* The template of int8 of many rows with AVX2: as linear_near.inc.h does it, a slice of a panel is made what is added to
 * inputs once, and multiplied from the first cache by all rows. On Zen 1, which has few units for what is left, 96 rows
 * take 2 % less time so; of instructions it is a sixth less. */

#define INT8_DEPTH 1024 /* of k at most: 192 to 640 took up to 4 % longer */

typedef Halves HalvesSlice[NEAR_GROUPS][INT8_DEPTH / 4][NEAR_COLUMNS / LANES]; /* a group of columns lies by itself */

INLINE void widen_int8(const char *w, int64_t length, HalvesSlice slice) {
    for (int64_t i = 0; i < (length + 3) / 4; i++, w += 4 * PANEL)
        UNROLL for (int v = 0; v < PANEL / LANES; v++) slice[v / 2][i][v % 2] = halves_of(w + 4 * v * LANES);
}

/* A block of rows times a group of columns, of which `w` is halves. */
INLINE void multiply_near_int8_rows(const int rows, const Block *b) {
    Sum sums[MOST_ROWS][8];
    const Halves *w = (const Halves *)b->w;
    const char *x = b->x, *share = b->share;
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) sums[m][v].f = b->first ? vzero() : vload(b->y + m * b->y_stride + v * LANES);
    for (int64_t k = 0; k < b->k; k += 4, x += 8, w += 2, share += b->share_step) {
        if (k % 8 == 0) __builtin_prefetch(share, 0, 2);
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *at = (const int32_t *)row_of(x, b->x_stride, m);
            __m256i even = (__m256i)viset1(at[0]), odd = (__m256i)viset1(at[1]);
            UNROLL for (int v = 0; v < 2; v++) sums[m][v].i += multiply_halves(even, odd, w[v]);
        }
    }
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) {
            if (b->last) sums[m][v].f = finish(KIND_INT8, b, sums[m][v], m, v * LANES);
            vstore(b->y + m * b->y_stride + v * LANES, sums[m][v].f);
        }
}

/* By themselves: within another function they have too few registers. */
#define DEFINE_NEAR_INT8(rows) \
    static __attribute__((noinline)) void near_int8_##rows(const Block *b) { multiply_near_int8_rows(rows, b); }
DEFINE_NEAR_INT8(1)
DEFINE_NEAR_INT8(2)
DEFINE_NEAR_INT8(3)
DEFINE_NEAR_INT8(4)

/* A whole panel, all rows of the tile: blocks of about equal height. */
INLINE void multiply_near_int8(const Tile *t, int64_t panel, int64_t blocks) {
    static void (*const near[])(const Block *) = {NULL, near_int8_1, near_int8_2, near_int8_3, near_int8_4};
    const Linear *linear = t->linear;
    const int64_t slices = (linear->k + INT8_DEPTH - 1) / INT8_DEPTH, steps = 4 * slices;
    const int64_t depth = (linear->k + steps - 1) / steps * 4, passes = blocks * NEAR_GROUPS;
    const int64_t rows = t->row_to - t->row_from, share = depth * t->panel_step / passes;
    HalvesSlice slice __attribute__((aligned(64)));
    for (int64_t k = 0; k < linear->k; k += depth) {
        const char *w = t->w + panel * t->panel_bytes + k * t->panel_step;
        int64_t length = linear->k - k < depth ? linear->k - k : depth;
        widen_int8(w, length, slice);
        for (int64_t pass = 0; pass < passes; pass++) {
            int64_t block = pass % blocks, from = t->row_from + rows * block / blocks;
            int64_t to = t->row_from + rows * (block + 1) / blocks, group = pass / blocks;
            int64_t column = panel * PANEL + group * NEAR_COLUMNS;
            Block b = {
                .x = row_of(t->x, t->x_stride, (int)from) + 2 * k,
                .x_stride = t->x_stride,
                .x_scales = t->x_scales + from,
                .x_pairs = t->x_pairs + from,
                .w = (const char *)slice[group],
                .k = length,
                .y = t->y + from * t->y_stride + column,
                .y_stride = t->y_stride,
                .bias = linear->bias ? linear->bias + column : NULL,
                .scales = linear->scales + column,
                .sums = linear->sums + column,
                .share = w + length * t->panel_step + pass * share,
                .share_step = share * 4 / depth,
                .first = k == 0,
                .last = k + depth >= linear->k,
            };
            near[to - from](&b);
        }
    }
}
