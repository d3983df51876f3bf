/* The template of weights in few bits with a scale for each group of k (linear.h), for vectors of one ISA: what sums
 * are made of. linear_bits4.inc.h and linear_bits8.inc.h include it, say how codes become levels, and include
 * linear_group_blocks.inc.h.
 *
 * Of each group of k the products with levels are summed alone; the sum times the group's scale is added to the output.
 * So one row decodes with few operations for a vector of weights, and of several blocks of rows the first leaves its
 * levels, as float32, to the others. All rows are computed so: the same bits. */
#include "linear.h"

#if NATIVE_ISA == 2
#define MOST_ROWS 12
#elif NATIVE_ISA == 1
#define MOST_ROWS 6
#elif defined(NATIVE_NEON)
#define MOST_ROWS 10
#else
#define MOST_ROWS 4
#endif
#define FEW_ROWS 2
#define CODES_AHEAD 4096 /* bytes: 1024 was up to 4 % slower, 8192 not faster (Zen 4, one row, 4 bits) */

/* Some rows and columns of a panel. */
typedef struct Groups {
    const float *x; /* (rows, k), at the first group's first k */
    int64_t x_stride;
    int64_t k, group;    /* the k, of all groups, and of one of them */
    const char *w;       /* codes at the first k; or levels, as float32's panel has weights */
    const float *scales; /* of these columns of a panel, (groups, PANEL) */
    const float *shifts; /* the same; or PANEL for all groups, then shifts_step is 0 */
    int64_t shifts_step;
    const float *table;
    float *levels; /* where a group's weights go as levels, for the next blocks; or NULL */
    float *y;
    int64_t y_stride;
} Groups;

typedef void GroupsFunction(const Groups *g);

/* Products of one k. */
INLINE void add_levels(const int rows, const int vectors, const float *x, const float *lower, int64_t stride,
                       const vf *levels, vf sums[MOST_ROWS][8]) {
    const int half = (rows + 1) / 2;
    UNROLL for (int m = 0; m < rows; m++) {
        const vf one = vset1(*(m < half ? x + m * stride : lower + (m - half) * stride));
        UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vfma(one, levels[v], sums[m][v]);
    }
}

/* Those of levels that lie as lines. */
INLINE void add_level_lines(const int rows, const int vectors, const Groups *g, vf sums[MOST_ROWS][8]) {
    const float *x = g->x, *lower = x + (rows + 1) / 2 * g->x_stride;
    const float *w = (const float *)g->w;
    int64_t stride = g->x_stride;
    for (int64_t left = g->k; left > 0; left--, w += PANEL, x++, lower++) {
        vf levels[8];
        __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
        UNROLL for (int v = 0; v < vectors; v++) levels[v] = vload(w + v * LANES);
        add_levels(rows, vectors, x, lower, stride, levels, sums);
    }
}

/* To the outputs the group's sums times its scales. */
INLINE void add_scaled(const int rows, const int vectors, const Groups *g, const float *scales, vf sums[MOST_ROWS][8]) {
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++) {
            float *y = g->y + m * g->y_stride + v * LANES;
            vstore(y, vfma(vload(scales + v * LANES), sums[m][v], vload(y)));
        }
}
