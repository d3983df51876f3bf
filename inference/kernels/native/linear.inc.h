/* The template of linears: a block of rows times a panel, for each kind of weight.
 *
 * Each output has one accumulator, to which the products are added in the order of k, however many rows
 * there are; where k is split, the accumulators pass through y, exactly.
 */
#include "linear.h"

/* Rows of a block: two accumulators each, and weights as loaded and as widened, in 32 or 16 registers. int8
 * without VNNI widens to twice as many. */
#if NATIVE_ISA == 2
#define MOST_ROWS 12
#define MOST_INT8_ROWS 10
#elif NATIVE_ISA == 1
#define MOST_ROWS 6
#define MOST_INT8_ROWS 4
#elif defined(NATIVE_NEON) /* which has 32 registers, too, but too few for pointers to more rows (GCC 12) */
#define MOST_ROWS 10
#define MOST_INT8_ROWS 8
#else
#define MOST_ROWS 4
#define MOST_INT8_ROWS 4
#endif
#define FEW_ROWS 2   /* up to these a panel is read in one pass, else two vectors at a time */
#define DEPTH 1024   /* of k at a time, for more rows than a block has: the slice of the panel stays in the caches */

typedef struct Block {
    const char *x; /* inputs at (row 0, k 0): float, or as prepared */
    int64_t x_stride; /* bytes */
    const float *x_scales; /* int8: by row */
    const int32_t *x_pairs; /* int8 with AVX2, too: the sum of products of neighbours */
    const char *w; /* the panel at k 0 */
    int64_t k; /* of this block, in inputs */
    float *y;
    int64_t y_stride;
    const float *bias, *scales; /* of the panel, or NULL */
    const int32_t *sums;
    const Exception *exceptions; /* coded: from this block's k on */
    int64_t from; /* k of the block in the panel */
    int base, column; /* coded: of the panel; the first of these columns in it */
    int64_t ahead[3]; /* bytes from the weights in use to lines further on, or of the next panel or slice; or 0 */
    const char *share; /* of the next panel or slice, what these columns fetch of it */
    int64_t share_bytes, share_step; /* in all; for 256 bytes of the weights in use, or 0 */
    float *widened; /* where the block's weights go as float32's panel, for the next blocks; or NULL */
    int first, last; /* of the blocks along k */
} Block;

#include "linear_fetch.inc.h"

typedef union Sum {
    vf f;
    vi i;
} Sum;

INLINE int is_rounded(const int kind) { return kind == KIND_ROUNDED || kind == KIND_CODED_ROUNDED; }
INLINE int is_coded(const int kind) {
    return kind == KIND_CODED || kind == KIND_CODED_ROUNDED || kind == KIND_CODED_SPLIT;
}

INLINE const char *row_of(const char *x, int64_t stride, int row) { return x + stride * row; }

INLINE vf broadcast(const char *x, int64_t stride, int row, int64_t k) {
    return vset1(((const float *)row_of(x, stride, row))[k]);
}

#if NATIVE_ISA == 2
#include "linear_lines.inc.h"
#else
/* `widened`: from a block's own memory, which is near. */
INLINE void add_float32(const int rows, const int vectors, const int widened, const Block *b,
                        Sum sums[MOST_ROWS][8]) {
    const float *w = (const float *)b->w;
    for (int64_t k = 0; k < b->k; k++, w += PANEL) {
        if (!widened) fetch(vectors, b, (const char *)w);
        UNROLL for (int m = 0; m < rows; m++) {
            vf x = broadcast(b->x, b->x_stride, m, k);
            UNROLL for (int v = 0; v < vectors; v++)
                sums[m][v].f = vfma(x, vload(w + v * LANES), sums[m][v].f);
        }
    }
}
#endif

/* Products of one k with its weights, which b->widened is to have, too; not with AVX2, where six rows of coded weights
 * took a third longer if each k asked for it (Zen 3), and many rows have linear_near.inc.h. */
INLINE void add_wide(const int rows, const int vectors, const Block *b, int64_t k, const vf *wide,
                     Sum sums[MOST_ROWS][8]) {
    if (NATIVE_ISA != 1 && b->widened)
        UNROLL for (int v = 0; v < vectors; v++) vstore(b->widened + k * PANEL + b->column + v * LANES, wide[v]);
    UNROLL for (int m = 0; m < rows; m++) {
        vf x = broadcast(b->x, b->x_stride, m, k);
        UNROLL for (int v = 0; v < vectors; v++) sums[m][v].f = vfma(x, wide[v], sums[m][v].f);
    }
}

INLINE void add_float16(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const uint16_t *w = (const uint16_t *)b->w;
    for (int64_t k = 0; k < b->k; k++, w += PANEL) {
        vf wide[8];
        __builtin_prefetch((const char *)w + AHEAD);
        fetch_ahead(1, b, (const char *)w);
        UNROLL for (int v = 0; v < vectors; v++) wide[v] = vload_f16(w + v * LANES);
        add_wide(rows, vectors, b, k, wide, sums);
    }
}

/* One k of bfloat16's panel: of each two words the lower, or the upper. */
INLINE void add_widened(const int rows, const int vectors, const Block *b, int64_t k, const vi *raw,
                        const int upper, Sum sums[MOST_ROWS][8]) {
    vf wide[8];
    UNROLL for (int v = 0; v < vectors; v++) wide[v] = upper ? (vf)(raw[v] & viset1(-65536)) : (vf)(raw[v] << 16);
    add_wide(rows, vectors, b, k, wide, sums);
}

INLINE void add_bfloat16(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    vi raw[8];
    int64_t k = 0;
    for (; k + 2 <= b->k; k += 2, w += 4 * PANEL) {
        fetch(vectors, b, w);
        UNROLL for (int v = 0; v < vectors; v++) raw[v] = viload(w + 4 * v * LANES);
        add_widened(rows, vectors, b, k, raw, 0, sums);
        add_widened(rows, vectors, b, k + 1, raw, 1, sums);
    }
    if (k == b->k) return;
    UNROLL for (int v = 0; v < vectors; v++) raw[v] = viload(w + 4 * v * LANES);
    add_widened(rows, vectors, b, k, raw, 0, sums);
}

#if defined(NATIVE_BF16)
/* Two k of bfloat16's panel. */
INLINE void add_pair(const int rows, const int vectors, const Block *b, int64_t k, const vi *raw,
                     Sum sums[MOST_ROWS][8]) {
    UNROLL for (int m = 0; m < rows; m++) {
        vi x = viset1(*(const int32_t *)(row_of(b->x, b->x_stride, m) + 2 * k));
        UNROLL for (int v = 0; v < vectors; v++)
            sums[m][v].f = _mm512_dpbf16_ps(sums[m][v].f, (__m512bh)x, (__m512bh)raw[v]);
    }
}
#endif

#include "linear_coded.inc.h"

#if defined(NATIVE_VNNI)
#include "linear_int6.inc.h"
#endif

#include "linear_int8.inc.h"

INLINE vf finish(const int kind, const Block *b, Sum sum, int row, int column) {
    if (kind != KIND_INT8 && kind != KIND_VNNI && kind != KIND_INT6 && kind != KIND_DOT) {
        if (b->bias) sum.f += vload(b->bias + column);
        return sum.f;
    }
    /* Of inputs that had 128 added, to be unsigned; or of the products of neighbours, the weights' and the inputs' */
    if ((kind != KIND_INT8 || NATIVE_ISA == 1) && kind != KIND_DOT) sum.i -= viload(b->sums + column);
    if (kind == KIND_INT8 && NATIVE_ISA == 1) sum.i -= viset1(b->x_pairs[row]);
    vf y = vtofloat(sum.i) * vload(b->scales + column) * vset1(b->x_scales[row]);
    if (b->bias) y += vload(b->bias + column);
    return y;
}

INLINE void multiply(const int kind, const int rows, const int vectors, const Block *b) {
    Sum sums[MOST_ROWS][8];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++)
            sums[m][v].f = b->first ? vzero() : vload(b->y + m * b->y_stride + v * LANES);
#if NATIVE_ISA == 2
    if (adds_pairs(kind)) add_line_pairs(kind, rows, vectors, b, sums);
#else
    if (kind == KIND_FLOAT32 || kind == KIND_WIDENED) add_float32(rows, vectors, kind == KIND_WIDENED, b, sums);
#endif
    if (kind == KIND_FLOAT16) add_float16(rows, vectors, b, sums);
    if (kind == KIND_BFLOAT16) add_bfloat16(rows, vectors, b, sums);
    if (is_coded(kind)) add_coded(kind, rows, vectors, b, sums);
    if (kind == KIND_INT8) add_int8(rows, vectors, b, sums);
#if defined(NATIVE_DOT)
    if (kind == KIND_DOT) add_dot(rows, vectors, b, sums);
#endif
#if defined(NATIVE_VNNI)
    if (kind == KIND_INT6) add_int6(rows, b, sums);
#endif
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++) {
            if (b->last) sums[m][v].f = finish(kind, b, sums[m][v], m, v * LANES);
            vstore(b->y + m * b->y_stride + v * LANES, sums[m][v].f);
        }
}

/* Columns of a panel in groups of `vectors`. */
INLINE void multiply_columns(const int kind, const int rows, Block b) {
    const int vectors = rows <= FEW_ROWS ? PANEL / LANES : 2;
    const int64_t bytes = is_coded(kind) ? 0 : kind == KIND_FLOAT16 ? 2 : 4; /* of a column, side by side */
    for (int column = 0; column < PANEL; column += vectors * LANES) {
        multiply(kind, rows, vectors, &b);
        b.w += vectors * LANES * bytes;
        b.column += vectors * LANES;
        b.share += b.share_bytes;
        b.y += vectors * LANES;
        if (b.bias) b.bias += vectors * LANES;
        if (b.scales) b.scales += vectors * LANES;
        if (b.sums) b.sums += vectors * LANES;
    }
}

INLINE void multiply_rows(const int kind, int64_t rows, const Block *b) {
    switch (rows) {
        case 1: multiply_columns(kind, 1, *b); break;
        case 2: multiply_columns(kind, 2, *b); break;
        case 3: multiply_columns(kind, 3, *b); break;
        case 4: multiply_columns(kind, 4, *b); break;
#if MOST_ROWS > 4
        case 5: multiply_columns(kind, 5, *b); break;
        case 6: multiply_columns(kind, 6, *b); break;
#endif
#if MOST_ROWS > 6
        case 7: multiply_columns(kind, 7, *b); break;
        case 8: multiply_columns(kind, 8, *b); break;
        case 9: multiply_columns(kind, 9, *b); break;
        case 10: multiply_columns(kind, 10, *b); break;
#endif
#if MOST_ROWS > 10
        case 11: multiply_columns(kind, 11, *b); break;
        case 12: multiply_columns(kind, 12, *b); break;
#endif
    }
}

/* Bytes to what is read next: the panel's next slice of k, or the next panel; where one block reads a long panel, and
 * doesn't fetch by shares, a later part of it. */
INLINE int64_t next_weights(const Tile *t, int64_t depth, int shares) {
    if (depth < t->linear->k) return depth * t->panel_step;
    return t->linear->k <= DEPTH || shares ? t->panel_bytes : FAR_AHEAD;
}

INLINE int64_t most_rows(const int kind) { return kind == KIND_INT8 ? MOST_INT8_ROWS : MOST_ROWS; }

/* With few rows the hardware keeps up, but for int8. */
INLINE int fetches(const int kind, int64_t rows, int shares) {
    return rows > FEW_ROWS || kind == KIND_VNNI || kind == KIND_DOT || shares;
}

#if NATIVE_ISA == 1
#include "linear_near.inc.h"
#include "linear_near_int8.inc.h"
#endif

/* One panel, all rows of the tile: blocks of about equal height, for each slice of k in turn. */
INLINE void multiply_panel(const int kind, const Tile *t, int64_t panel, float *widened) {
    const Linear *linear = t->linear;
    int64_t rows = t->row_to - t->row_from, blocks = (rows + most_rows(kind) - 1) / most_rows(kind);
    int64_t columns = linear->n - panel * PANEL, stride = columns < PANEL ? PANEL : t->y_stride;
#if NATIVE_ISA == 1
    if (columns >= PANEL && multiplies_near(kind, rows, blocks)) {
        if (kind == KIND_INT8)
            multiply_near_int8(t, panel, blocks);
        else
            multiply_near(kind, t, panel, blocks);
        return;
    }
#endif
    int64_t depth = blocks > 1 && columns >= PANEL ? DEPTH : linear->k;
    float *y = t->y + t->row_from * t->y_stride + panel * PANEL, edge[MOST_ROWS * PANEL];
    if (depth != DEPTH || blocks < (is_coded(kind) ? 2 : 3)) widened = NULL;
    const int shares = fetches_by_shares(kind, rows, blocks);
    int64_t behind = streams(kind, blocks) ? AHEAD : fetches(kind, rows, shares) ? next_weights(t, depth, shares) : 0;
    int64_t fetching = widened ? 0 : blocks - 1, fetching_too = widened || blocks == 1 ? 0 : blocks - 2;
    int64_t passes = blocks * (rows <= FEW_ROWS ? 1 : PANEL / (2 * LANES));
    int64_t step = shares && behind ? 256 / passes + 1 : 0;
    int64_t share = step ? depth * t->panel_step / passes : 0;
    const Exception *exceptions = is_coded(kind) ? linear->exceptions + linear->firsts[panel] : NULL;
    for (int64_t k = 0; k < linear->k; k += depth) {
        while (is_coded(kind) && exceptions->at / QUAD_WEIGHTS < k / QUAD) exceptions++;
        const char *slice = t->w + panel * t->panel_bytes + k * t->panel_step;
        int64_t length = linear->k - k < depth ? linear->k - k : depth;
        for (int64_t i = 0, from = 0, to; i < blocks; i++, from = to) {
            to = rows * (i + 1) / blocks;
            Block b = {
                .x = t->x + (t->row_from + from) * t->x_stride + k * t->x_bytes,
                .x_stride = t->x_stride,
                .x_scales = t->x_scales ? t->x_scales + t->row_from + from : NULL,
                .x_pairs = t->x_pairs ? t->x_pairs + t->row_from + from : NULL,
                .w = widened && i ? (const char *)widened : slice,
                .k = length,
                .y = columns < PANEL ? edge : y + from * t->y_stride,
                .y_stride = stride,
                .bias = linear->bias ? linear->bias + panel * PANEL : NULL,
                .scales = linear->scales ? linear->scales + panel * PANEL : NULL,
                .sums = linear->sums ? linear->sums + panel * PANEL : NULL,
                .exceptions = exceptions,
                .from = k,
                .base = is_coded(kind) ? linear->bases[panel] : 0,
                .ahead = {i == fetching ? behind : 0, behind && i == fetching_too ? behind + 64 : 0,
                          behind && i == fetching ? behind + 128 : 0},
                .share = slice + behind + i * passes / blocks * share,
                .share_bytes = share,
                .share_step = step,
                .widened = i ? NULL : widened,
                .first = k == 0,
                .last = k + depth >= linear->k,
            };
            if (widened && i)
                multiply_rows(KIND_WIDENED, to - from, &b);
            else
                multiply_rows(kind, to - from, &b);
            for (int64_t m = 0; columns < PANEL && m < to - from; m++)
                memcpy(y + (from + m) * t->y_stride, edge + m * PANEL, (size_t)columns * sizeof *y);
        }
    }
}

#define DEFINE_LINEAR(name, kind)                                       \
    void name(const Tile *t) {                                          \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++) \
            multiply_panel(kind, t, panel, NULL);                       \
    }

/* Of many rows, only the first block widens its weights. With rounded inputs nothing is widened, and AVX2 has
 * linear_near.inc.h for it. */
#define DEFINE_WIDENED_LINEAR(name, kind)                               \
    void name(const Tile *t) {                                          \
        float widened[DEPTH * PANEL] __attribute__((aligned(64)));      \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++) \
            multiply_panel(kind, t, panel, widened);                    \
    }
