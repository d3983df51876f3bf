/* The template of linears of several rows with AVX2: a slice of a panel is multiplied by all rows while it is near.
 * Products are added in the same order as everywhere.
 *
 * float32 is read as it lies, and bfloat16 widened by each block of rows as it multiplies, while those are few: in the
 * first cache both cost nothing. Many rows of bfloat16, and float16, have the slice made float32 once; weights in 12
 * bits are decoded once, for two blocks to words of bfloat16. All of it beside slices that were made float32 for all
 * but two blocks of float32, which fetched theirs from the second cache (Zen 3, medians of 31 in turn, by shape):
 * float32 is 1.19 to 1.32 times as fast with 8 rows, 1.14 to 1.31 with 12, 1.08 to 1.19 with 16, 1.01 to 1.1 with 32;
 * bfloat16 1.04 to 1.15 with 4, 1.14 to 1.3 with 8, 1.07 to 1.17 with 12, 1 to 1.07 with 16; 12 bits 1.03 to 1.08
 * with 8. */

#define NEAR_DEPTH 320 /* of k at most: slices of 192 were 3 % slower, of 384 and 576 not faster */
#define WORDS_DEPTH 512 /* of bfloat16 where it lies: 192 and 320 were up to 7 % slower */
#define LINES_DEPTH 256 /* of float32: 128 was up to 6 % slower, 192 and 384 within 3 % */
#define FEW_LINES_DEPTH 128 /* with few blocks: 192 took up to a tenth longer with 8 rows, 256 and 384 more */
#define FEW_BLOCKS 2
#define WORDS_BLOCKS 3 /* of bfloat16 at most: widened for each of six and more it was up to 8 % slower */
#define NEAR_COLUMNS (2 * LANES)
#define NEAR_GROUPS (PANEL / NEAR_COLUMNS)
#define NEAR_STEP 4 /* of k: for each one or two lines are fetched of what comes next */

typedef float NearSlice[NEAR_GROUPS][NEAR_DEPTH][NEAR_COLUMNS]; /* a group of columns lies by itself */

/* How weights lie: a line of columns after the other, where the panel has them or in a slice of NEAR_COLUMNS; or words
 * of two k, as in bfloat16's panel. */
enum { LINES, SLICE, WORDS };

typedef struct Near {
    const float *x; /* at the slice's first k */
    int64_t x_stride, k;
    const char *w;
    float *y;
    int64_t y_stride;
    const float *bias; /* of these columns, if this is the last slice; or NULL */
    const char *share; /* of the next slice or panel, what these rows and columns fetch */
    int64_t share_step;
    int first;
} Near;

/* Whether it pays: one block reads float32's or int8's panel faster by itself. */
INLINE int multiplies_near(const int kind, int64_t rows, int64_t blocks) {
    return blocks >= 2 || (kind == KIND_BFLOAT16 && rows > FEW_ROWS);
}

INLINE int near_form(const int kind, int64_t blocks) {
    if (kind == KIND_FLOAT32) return LINES;
    const int words = is_coded(kind) ? blocks == 2 : kind == KIND_BFLOAT16 && blocks <= WORDS_BLOCKS;
    return words ? WORDS : SLICE;
}

/* Of k at a time at most. */
INLINE int64_t form_depth(const int kind, int form, int64_t blocks) {
    if (form == LINES) return blocks <= FEW_BLOCKS ? FEW_LINES_DEPTH : LINES_DEPTH;
    return form == WORDS && !is_coded(kind) ? WORDS_DEPTH : NEAR_DEPTH;
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

typedef int32_t NearWords[NEAR_DEPTH / 2][PANEL];

INLINE void keep_pair(const vi *words, int64_t k, NearWords kept) {
    UNROLL for (int v = 0; v < PANEL / LANES; v++) *(vi *)(kept[k / 2] + v * LANES) = words[v];
}

/* Weights in 12 bits, to words or as float32. */
INLINE void decode_slice(const int form, const char *w, int base, const Exception *exception, int64_t quad,
                         int64_t length, NearSlice slice, NearWords kept) {
    const vi table = table_of(base);
    for (int64_t k = 0; k < length; k += QUAD, quad++, w += QUAD_BYTES) {
        vi words[2 * PAIR_VECTORS];
        decode(PAIR_VECTORS, w, 0, table, words);
        if (__builtin_expect(exception->at / QUAD_WEIGHTS == quad, 0))
            exception = correct(PAIR_VECTORS, exception, quad, 0, words);
        UNROLL for (int i = 0; i < QUAD; i += 2) {
            if (form == WORDS)
                keep_pair(words + i / 2 * PAIR_VECTORS, k + i, kept);
            else
                widen_pair(words + i / 2 * PAIR_VECTORS, k + i, slice);
        }
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
    for (int64_t k = 0; k < length; k++, w += 2 * PANEL) {
        vf wide[PANEL / LANES];
        UNROLL for (int v = 0; v < PANEL / LANES; v++) wide[v] = vload_f16((const uint16_t *)w + v * LANES);
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

/* Products of two k, or of the first alone, of whose words the lower halves are its weights. They are loaded for each:
 * there are no registers to keep them in. */
INLINE void near_add_words(const int rows, const int both, const float *x, const float *lower, int64_t stride,
                           const char *w, vf sums[MOST_ROWS][2]) {
    const int half = (rows + 1) / 2;
    UNROLL for (int i = 0; i < 1 + both; i++) {
        __asm__("" : "+r"(w));
        const vi c = viload(w), d = viload(w + 4 * LANES), mask = viset1(-65536);
        const vf a = i ? (vf)(c & mask) : (vf)(c << 16), b = i ? (vf)(d & mask) : (vf)(d << 16);
        UNROLL for (int m = 0; m < rows; m++) {
            const vf one = vset1(*(m < half ? x + i + m * stride : lower + i + (m - half) * stride));
            sums[m][0] = vfma(one, a, sums[m][0]);
            sums[m][1] = vfma(one, b, sums[m][1]);
        }
    }
}

/* The compiler is kept from multiplying the stride out: it then has an offset for each row and k, in memory. */
INLINE void multiply_near_rows(const int rows, const int form, const Near *n) {
    const int ks = form == WORDS ? 2 : 1; /* at a time */
    const int64_t step = form == SLICE ? 4 * NEAR_COLUMNS : 4 * PANEL; /* bytes of so many */
    vf sums[MOST_ROWS][2];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) sums[m][v] = n->first ? vzero() : vload(n->y + m * n->y_stride + v * LANES);
    const float *x = n->x, *lower = x + (rows + 1) / 2 * n->x_stride;
    const char *share = n->share, *w = n->w;
    int64_t stride = n->x_stride, left = n->k;
    for (; left >= NEAR_STEP; left -= NEAR_STEP, share += n->share_step) {
        __builtin_prefetch(share, 0, 2);
        if (n->share_step > 64) __builtin_prefetch(share + 64, 0, 2); /* float32, few blocks */
        UNROLL for (int i = 0; i < NEAR_STEP; i += ks) {
            __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
            if (form == WORDS)
                near_add_words(rows, 1, x + i, lower + i, stride, w + i / ks * step, sums);
            else
                near_add(rows, x + i, lower + i, stride, (const float *)(w + i * step), sums);
        }
        x += NEAR_STEP, lower += NEAR_STEP, w += NEAR_STEP / ks * step;
    }
    for (; left > 0; left -= ks, x += ks, lower += ks, w += step) {
        if (form != WORDS)
            near_add(rows, x, lower, stride, (const float *)w, sums);
        else if (left > 1)
            near_add_words(rows, 1, x, lower, stride, w, sums);
        else
            near_add_words(rows, 0, x, lower, stride, w, sums);
    }
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < 2; v++) {
            if (n->bias) sums[m][v] += vload(n->bias + v * LANES);
            vstore(n->y + m * n->y_stride + v * LANES, sums[m][v]);
        }
}

/* By themselves: within another function they have too few registers. */
#define DEFINE_NEAR(name, form, rows) \
    static __attribute__((noinline)) void near_##name##_##rows(const Near *n) { multiply_near_rows(rows, form, n); }
#define DEFINE_NEAR_FORM(name, form) \
    DEFINE_NEAR(name, form, 3) DEFINE_NEAR(name, form, 4) DEFINE_NEAR(name, form, 5) DEFINE_NEAR(name, form, 6)
DEFINE_NEAR_FORM(lines, LINES)
DEFINE_NEAR_FORM(slice, SLICE)
DEFINE_NEAR_FORM(words, WORDS)

/* A whole panel, all rows of the tile: blocks of about equal height. */
INLINE void multiply_near(const int kind, const Tile *t, int64_t panel, int64_t blocks) {
    static void (*const near[][MOST_ROWS + 1])(const Near *) = {
        [LINES] = {[3] = near_lines_3, near_lines_4, near_lines_5, near_lines_6},
        [SLICE] = {[3] = near_slice_3, near_slice_4, near_slice_5, near_slice_6},
        [WORDS] = {[3] = near_words_3, near_words_4, near_words_5, near_words_6},
    };
    const Linear *linear = t->linear;
    const int form = near_form(kind, blocks);
    const int64_t depth = near_depth(linear->k, form_depth(kind, form, blocks)), passes = blocks * NEAR_GROUPS;
    const int64_t share = depth * t->panel_step / passes;
    const Exception *exceptions = is_coded(kind) ? linear->exceptions + linear->firsts[panel] : NULL;
    NearSlice slice __attribute__((aligned(64)));
    NearWords kept __attribute__((aligned(64)));
    for (int64_t k = 0; k < linear->k; k += depth) {
        const char *w = t->w + panel * t->panel_bytes + k * t->panel_step, *from = form == WORDS ? (char *)kept : w;
        int64_t length = linear->k - k < depth ? linear->k - k : depth;
        while (is_coded(kind) && exceptions->at / QUAD_WEIGHTS < k / QUAD) exceptions++;
        if (!is_coded(kind) && form != SLICE)
            from = w;
        else if (!is_coded(kind))
            widen_slice(kind, w, length, slice);
        else if (form == WORDS)
            decode_slice(WORDS, w, linear->bases[panel], exceptions, k / QUAD, length, slice, kept);
        else
            decode_slice(SLICE, w, linear->bases[panel], exceptions, k / QUAD, length, slice, kept);
        for (int64_t pass = 0; pass < passes; pass++) {
            const NearPass p = near_pass(t, panel, blocks, pass);
            Near n = {
                .x = (const float *)row_of(t->x, t->x_stride, (int)p.from) + k,
                .x_stride = t->x_stride / (int64_t)sizeof(float),
                .k = length,
                .w = form == SLICE ? (const char *)slice[p.group] : from + p.group * 4 * NEAR_COLUMNS,
                .y = t->y + p.from * t->y_stride + p.column,
                .y_stride = t->y_stride,
                .bias = linear->bias && k + depth >= linear->k ? linear->bias + p.column : NULL,
                .share = w + length * t->panel_step + pass * share,
                .share_step = share * NEAR_STEP / depth,
                .first = k == 0,
            };
            near[form][p.to - p.from](&n);
        }
    }
}
