/* The template of int8 of many rows with AVX2: as linear_near.inc.h does it, a slice of a panel is made what is added to
 * inputs once, and multiplied from the first cache by all rows. Each block of rows would do it again otherwise, which is
 * a sixth of its instructions. With three blocks that took 5 % less time all the same (Zen 1), so two and
 * three read the bytes: beside linear.inc.h's functions they are 1.03 to 1.14 and 1.03 to 1.08 times as fast (Zen 3). */

#define BYTES_BLOCKS 3 /* whose weights are widened by each block */
#define INT8_DEPTH 1024 /* of k at most: 192 to 640 took up to 4 % longer */

typedef Halves HalvesSlice[NEAR_GROUPS][INT8_DEPTH / 4][NEAR_COLUMNS / LANES]; /* a group of columns lies by itself */

INLINE void widen_int8(const char *w, int64_t length, HalvesSlice slice) {
    for (int64_t i = 0; i < (length + 3) / 4; i++, w += 4 * PANEL)
        UNROLL for (int v = 0; v < PANEL / LANES; v++) slice[v / 2][i][v % 2] = halves_of(w + 4 * v * LANES);
}

/* A block of rows times a group of columns, of which `w` is halves. */
INLINE void multiply_near_int8_rows(const int rows, const int sliced, const Block *b) {
    Sum sums[MOST_ROWS][8];
    const char *x = b->x, *w = b->w, *share = b->share;
    const int64_t step = sliced ? 2 * sizeof(Halves) : 4 * PANEL; /* bytes of four k */
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) sums[m][v].f = b->first ? vzero() : vload(b->y + m * b->y_stride + v * LANES);
    for (int64_t k = 0; k < b->k; k += 4, x += 8, w += step, share += b->share_step) {
        if (k % 8 == 0) __builtin_prefetch(share, 0, 2);
        Halves halves[2];
        UNROLL for (int v = 0; v < 2; v++) halves[v] = sliced ? ((const Halves *)w)[v] : halves_of(w + 4 * v * LANES);
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *at = (const int32_t *)row_of(x, b->x_stride, m);
            __m256i even = (__m256i)viset1(at[0]), odd = (__m256i)viset1(at[1]);
            UNROLL for (int v = 0; v < 2; v++) sums[m][v].i += multiply_halves(even, odd, halves[v]);
        }
    }
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) {
            if (b->last) sums[m][v].f = finish(KIND_INT8, b, sums[m][v], m, v * LANES);
            vstore(b->y + m * b->y_stride + v * LANES, sums[m][v].f);
        }
}

/* By themselves: within another function they have too few registers. */
#define DEFINE_NEAR_INT8(name, sliced, rows) \
    static __attribute__((noinline)) void near_int8_##name##_##rows(const Block *b) { \
        multiply_near_int8_rows(rows, sliced, b); \
    }
DEFINE_NEAR_INT8(bytes, 0, 2)
DEFINE_NEAR_INT8(bytes, 0, 3)
DEFINE_NEAR_INT8(bytes, 0, 4)
DEFINE_NEAR_INT8(sliced, 1, 3)
DEFINE_NEAR_INT8(sliced, 1, 4)

/* A whole panel, all rows of the tile: blocks of about equal height. */
INLINE void multiply_near_int8(const Tile *t, int64_t panel, int64_t blocks) {
    static void (*const near[][MOST_INT8_ROWS + 1])(const Block *) = {
        {[2] = near_int8_bytes_2, near_int8_bytes_3, near_int8_bytes_4},
        {[3] = near_int8_sliced_3, near_int8_sliced_4},
    };
    const int sliced = blocks > BYTES_BLOCKS;
    const Linear *linear = t->linear;
    const int64_t depth = near_depth(linear->k, INT8_DEPTH), passes = blocks * NEAR_GROUPS;
    const int64_t share = depth * t->panel_step / passes;
    HalvesSlice slice __attribute__((aligned(64)));
    for (int64_t k = 0; k < linear->k; k += depth) {
        const char *w = t->w + panel * t->panel_bytes + k * t->panel_step;
        int64_t length = linear->k - k < depth ? linear->k - k : depth;
        if (sliced) widen_int8(w, length, slice);
        for (int64_t pass = 0; pass < passes; pass++) {
            const NearPass p = near_pass(t, panel, blocks, pass);
            Block b = {
                .x = row_of(t->x, t->x_stride, (int)p.from) + 2 * k,
                .x_stride = t->x_stride,
                .x_scales = t->x_scales + p.from,
                .x_pairs = t->x_pairs + p.from,
                .w = sliced ? (const char *)slice[p.group] : w + p.group * 4 * NEAR_COLUMNS,
                .k = length,
                .y = t->y + p.from * t->y_stride + p.column,
                .y_stride = t->y_stride,
                .bias = linear->bias ? linear->bias + p.column : NULL,
                .scales = linear->scales + p.column,
                .sums = linear->sums + p.column,
                .share = w + length * t->panel_step + pass * share,
                .share_step = share * NEAR_STEP / depth,
                .first = k == 0,
                .last = k + depth >= linear->k,
            };
            near[sliced][p.to - p.from](&b);
        }
    }
}
