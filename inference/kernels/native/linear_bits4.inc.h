/* The template of weights in 4 bits (linear.h), for vectors of one ISA.
 *
 * Of each group of k the products with levels are summed alone; the sum times the group's scale is added to the output.
 * So one row decodes with two operations for a vector of weights, three where groups have zero points, and of several
 * blocks of rows the first leaves its levels, as float32, to the others. All rows are computed so: the same bits. */
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
#define WORDS_AHEAD 4096 /* bytes: 1024 was up to 4 % slower, 8192 not faster (Zen 4, one row) */

/* What a weight's level is: one of sixteen by its code; or its code and what its group adds, minus its zero point. As
 * AVX-512 finds sixteen levels as fast as it converts codes, it takes the second only where there are zero points. */
enum { BY_TABLE, SHIFTED };

/* Some rows and columns of a panel. */
typedef struct Bits4 {
    const float *x; /* (rows, k), at the first group's first k */
    int64_t x_stride;
    int64_t k, group;    /* the k, of all groups, and of one of them */
    const char *w;       /* words at the first k; or levels, as float32's panel has weights */
    const float *scales; /* of these columns of a panel, (groups, PANEL) */
    const float *shifts; /* the same; or PANEL for all groups, then shifts_step is 0 */
    int64_t shifts_step;
    const float *table;
    float *levels; /* where a group's weights go as levels, for the next blocks; or NULL */
    float *y;
    int64_t y_stride;
} Bits4;

typedef void Bits4Function(const Bits4 *b);

#if NATIVE_ISA == 2
typedef vf LevelTable;

INLINE LevelTable level_table(const int form, const float *table) {
    vf whole;
    for (int i = 0; i < LANES; i++) whole[i] = (float)i;
    return form == BY_TABLE ? vload(table) : whole;
}

INLINE vf level_of(const int form, LevelTable table, vi words, const int i) {
    (void)form;
    return _mm512_permutexvar_ps((__m512i)(words >> 4 * i), table); /* which reads four bits */
}
#else
typedef struct LevelTable {
    const float *all;
    vf lower, upper; /* of all, the first eight and the last, with AVX2 */
} LevelTable;

INLINE LevelTable level_table(const int form, const float *table) {
    LevelTable found = {.all = table};
    if (NATIVE_ISA == 1 && form == BY_TABLE) found.lower = vload(table), found.upper = vload(table + 16 - LANES);
    return found;
}

INLINE vf level_of(const int form, LevelTable table, vi words, const int i) {
    const vi code = words >> 4 * i;
    if (form == SHIFTED) return vtofloat(code & viset1(15));
#if NATIVE_ISA == 1
    const __m256 lower = _mm256_permutevar8x32_ps(table.lower, (__m256i)code);
    const __m256 upper = _mm256_permutevar8x32_ps(table.upper, (__m256i)code);
    return _mm256_blendv_ps(lower, upper, (__m256)(words << (28 - 4 * i))); /* by the code's upper bit */
#else
    vf found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = table.all[code[lane] & 15];
    return found;
#endif
}
#endif

/* Products of the k at one place of words, or of one line of levels. */
INLINE void add_levels(const int rows, const int vectors, const float *x, const float *lower, int64_t stride,
                       const vf *levels, vf sums[MOST_ROWS][8]) {
    const int half = (rows + 1) / 2;
    UNROLL for (int m = 0; m < rows; m++) {
        const vf one = vset1(*(m < half ? x + m * stride : lower + (m - half) * stride));
        UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vfma(one, levels[v], sums[m][v]);
    }
}

/* Of eight k, or of the `count` that there are; `kept`: where their levels go, or NULL. */
INLINE void add_words(const int form, const int rows, const int vectors, const float *x, const float *lower,
                      int64_t stride, const int count, LevelTable table, const vi *words, const vf *shift, float *kept,
                      vf sums[MOST_ROWS][8]) {
    UNROLL for (int i = 0; i < BITS4_CODES; i++) {
        vf levels[8];
        if (i == count) return;
        UNROLL for (int v = 0; v < vectors; v++) {
            levels[v] = level_of(form, table, words[v], i);
            if (form == SHIFTED) levels[v] += shift[v];
            if (kept) vstore(kept + i * PANEL + v * LANES, levels[v]);
        }
        add_levels(rows, vectors, x + i, lower + i, stride, levels, sums);
    }
}

/* One group. The compiler is kept from multiplying the stride out, to an offset for each row. */
INLINE void add_group(const int form, const int keeps, const int rows, const int vectors, const Bits4 *b, int64_t from,
                      int64_t left, LevelTable table, const vf *shift, vf sums[MOST_ROWS][8]) {
    const float *x = b->x + from, *lower = x + (rows + 1) / 2 * b->x_stride;
    const char *w = b->w + from / BITS4_CODES * BITS4_BYTES;
    int64_t stride = b->x_stride;
    float *kept = keeps ? b->levels : NULL;
    vi words[8];
    for (; left >= BITS4_CODES; left -= BITS4_CODES, w += BITS4_BYTES, x += BITS4_CODES, lower += BITS4_CODES) {
        __builtin_prefetch(w + WORDS_AHEAD);
        if (vectors * LANES == PANEL) __builtin_prefetch(w + WORDS_AHEAD + 64);
        __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
        UNROLL for (int v = 0; v < vectors; v++) words[v] = viload(w + 4 * v * LANES);
        add_words(form, rows, vectors, x, lower, stride, BITS4_CODES, table, words, shift, kept, sums);
        if (keeps) kept += BITS4_CODES * PANEL;
    }
    if (left <= 0) return;
    UNROLL for (int v = 0; v < vectors; v++) words[v] = viload(w + 4 * v * LANES);
    for (int i = 0; i < left; i++) {
        add_words(form, rows, vectors, x + i, lower + i, stride, 1, table, words, shift, kept, sums);
        if (keeps) kept += PANEL;
        UNROLL for (int v = 0; v < vectors; v++) words[v] >>= 4;
    }
}

/* The same of levels that lie as lines. */
INLINE void add_level_lines(const int rows, const int vectors, const Bits4 *b, vf sums[MOST_ROWS][8]) {
    const float *x = b->x, *lower = x + (rows + 1) / 2 * b->x_stride;
    const float *w = (const float *)b->w;
    int64_t stride = b->x_stride;
    for (int64_t left = b->k; left > 0; left--, w += PANEL, x++, lower++) {
        vf levels[8];
        __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
        UNROLL for (int v = 0; v < vectors; v++) levels[v] = vload(w + v * LANES);
        add_levels(rows, vectors, x, lower, stride, levels, sums);
    }
}

/* To the outputs the group's sums times its scales. */
INLINE void add_scaled(const int rows, const int vectors, const Bits4 *b, const float *scales, vf sums[MOST_ROWS][8]) {
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++) {
            float *y = b->y + m * b->y_stride + v * LANES;
            vstore(y, vfma(vload(scales + v * LANES), sums[m][v], vload(y)));
        }
}

INLINE void multiply_words(const int form, const int keeps, const int rows, const int vectors, const Bits4 *b) {
    const LevelTable table = level_table(form, b->table);
    const float *scales = b->scales, *shifts = b->shifts;
    for (int64_t k = 0; k < b->k; k += b->group, scales += PANEL, shifts += b->shifts_step) {
        vf sums[MOST_ROWS][8], shift[8];
        UNROLL for (int v = 0; v < vectors; v++) shift[v] = form == SHIFTED ? vload(shifts + v * LANES) : vzero();
        UNROLL for (int m = 0; m < rows; m++)
            UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vzero();
        add_group(form, keeps, rows, vectors, b, k, b->k - k < b->group ? b->k - k : b->group, table, shift, sums);
        add_scaled(rows, vectors, b, scales, sums);
    }
}

INLINE void multiply_lines(const int rows, const int vectors, const Bits4 *b) {
    vf sums[MOST_ROWS][8];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vzero();
    add_level_lines(rows, vectors, b, sums);
    add_scaled(rows, vectors, b, b->scales, sums);
}

/* By themselves: within another function they have too few registers. */
#define FEW_VECTORS(rows) ((rows) <= (NATIVE_ISA == 1 ? 1 : FEW_ROWS) ? PANEL / LANES : 2)
#define DEFINE_WORDS(name, form, keeps, rows)                                                    \
    static __attribute__((noinline)) void name##_##rows(const Bits4 *b) {                        \
        multiply_words(form, keeps, rows, FEW_VECTORS(rows), b);                                 \
    }
#define DEFINE_BITS4(rows)                                                                       \
    DEFINE_WORDS(table, BY_TABLE, 0, rows)                                                       \
    DEFINE_WORDS(shifted, SHIFTED, 0, rows)                                                      \
    DEFINE_WORDS(kept_table, BY_TABLE, 1, rows)                                                  \
    DEFINE_WORDS(kept_shifted, SHIFTED, 1, rows)                                                 \
    static __attribute__((noinline)) void lines_##rows(const Bits4 *b) { multiply_lines(rows, 2, b); }
DEFINE_BITS4(1)
DEFINE_BITS4(2)
DEFINE_BITS4(3)
DEFINE_BITS4(4)
#if MOST_ROWS > 4
DEFINE_BITS4(5)
DEFINE_BITS4(6)
#endif
#if MOST_ROWS > 6
DEFINE_BITS4(7)
DEFINE_BITS4(8)
DEFINE_BITS4(9)
DEFINE_BITS4(10)
#endif
#if MOST_ROWS > 10
DEFINE_BITS4(11)
DEFINE_BITS4(12)
#endif

#if MOST_ROWS == 12
#define BITS4_FUNCTIONS(name)                                                                                          \
    {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10,        \
     name##_11, name##_12}
#elif MOST_ROWS == 10
#define BITS4_FUNCTIONS(name)                                                                                          \
    {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10}
#elif MOST_ROWS == 6
#define BITS4_FUNCTIONS(name) {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6}
#else
#define BITS4_FUNCTIONS(name) {NULL, name##_1, name##_2, name##_3, name##_4}
#endif

enum { KEPT = 2, LINES = 4 }; /* beside BY_TABLE and SHIFTED: the same, with levels kept; levels that were */

/* All columns of a panel, in groups of vectors. */
INLINE void multiply_columns(int form, int64_t rows, Bits4 b) {
    static Bits4Function *const functions[][MOST_ROWS + 1] = {
        [BY_TABLE] = BITS4_FUNCTIONS(table),
        [SHIFTED] = BITS4_FUNCTIONS(shifted),
        [KEPT + BY_TABLE] = BITS4_FUNCTIONS(kept_table),
        [KEPT + SHIFTED] = BITS4_FUNCTIONS(kept_shifted),
        [LINES] = BITS4_FUNCTIONS(lines),
    };
    const int columns = LANES * (form == LINES ? 2 : FEW_VECTORS(rows));
    for (int column = 0; column < PANEL; column += columns) {
        functions[form][rows](&b);
        b.w += 4 * columns; /* of words as of float32 */
        b.scales += columns, b.shifts += columns, b.y += columns;
        if (b.levels) b.levels += columns;
    }
}

/* Where outputs begin: the bias, or nothing. */
INLINE void begin_outputs(const Linear *linear, int64_t panel, int64_t rows, float *y, int64_t y_stride) {
    const float *bias = linear->bias ? linear->bias + panel * PANEL : NULL;
    for (int64_t m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < PANEL / LANES; v++)
            vstore(y + m * y_stride + v * LANES, bias ? vload(bias + v * LANES) : vzero());
}

INLINE int form_of(const Linear *linear) {
    return NATIVE_ISA == 2 ? (linear->zeros ? SHIFTED : BY_TABLE) : linear->is_whole ? SHIFTED : BY_TABLE;
}

/* Of a panel that lies within y, a group after the other for all rows. The first block decodes it. */
INLINE void multiply_blocks(int form, Bits4 b, int64_t rows, int64_t blocks) {
    float levels[BITS4_GROUP][PANEL] __attribute__((aligned(64)));
    const Bits4 whole = b;
    for (int64_t k = 0; k < whole.k; k += whole.group) {
        b.k = whole.k - k < whole.group ? whole.k - k : whole.group;
        b.x = whole.x + k, b.y = whole.y;
        for (int64_t i = 0, from = 0, to; i < blocks; i++, from = to) {
            to = rows * (i + 1) / blocks;
            b.w = i ? (const char *)levels : whole.w + k / BITS4_CODES * BITS4_BYTES;
            b.levels = i ? NULL : levels[0];
            multiply_columns(i ? LINES : KEPT + form, to - from, b);
            b.x += (to - from) * b.x_stride, b.y += (to - from) * b.y_stride;
        }
        b.scales += PANEL, b.shifts += b.shifts_step;
    }
}

/* The others: a block after the other, of a panel that ends behind y by its own outputs. */
INLINE void multiply_block(int form, Bits4 b, const Linear *linear, int64_t panel, int64_t rows) {
    const int64_t columns = linear->n - panel * PANEL, stride = b.y_stride;
    float *y = b.y, edge[MOST_ROWS * PANEL];
    if (columns < PANEL) b.y = edge, b.y_stride = PANEL;
    begin_outputs(linear, panel, rows, b.y, b.y_stride);
    multiply_columns(form, rows, b);
    for (int64_t m = 0; columns < PANEL && m < rows; m++)
        memcpy(y + m * stride, edge + m * PANEL, (size_t)columns * sizeof *y);
}

/* One panel, all rows of the tile, in blocks of about equal height. */
INLINE void multiply_panel(const Tile *t, int64_t panel, const float *no_shifts) {
    const Linear *linear = t->linear;
    const int64_t rows = t->row_to - t->row_from, blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t groups = (linear->k + linear->group - 1) / linear->group;
    const int form = form_of(linear);
    Bits4 b = {
        .x = (const float *)(t->x + t->row_from * t->x_stride),
        .x_stride = t->x_stride / (int64_t)sizeof(float),
        .k = linear->k,
        .group = linear->group,
        .w = t->w + panel * t->panel_bytes,
        .scales = linear->scales + panel * groups * PANEL,
        .shifts = linear->zeros ? linear->zeros + panel * groups * PANEL : no_shifts,
        .shifts_step = linear->zeros ? PANEL : 0,
        .table = linear->table,
        .y = t->y + t->row_from * t->y_stride + panel * PANEL,
        .y_stride = t->y_stride,
    };
    if (blocks > 1 && linear->n - panel * PANEL >= PANEL) {
        begin_outputs(linear, panel, rows, b.y, b.y_stride);
        multiply_blocks(form, b, rows, blocks);
        return;
    }
    for (int64_t i = 0, from = 0, to; i < blocks; i++, from = to) {
        to = rows * (i + 1) / blocks;
        multiply_block(form, b, linear, panel, to - from);
        b.x += (to - from) * b.x_stride, b.y += (to - from) * b.y_stride;
    }
}

/* `no_shifts`: of whole numbers that all groups count from the same one. */
#define DEFINE_BITS4_LINEAR(name)                                                        \
    void name(const Tile *t) {                                                           \
        float no_shifts[PANEL];                                                          \
        for (int i = 0; i < PANEL; i++) no_shifts[i] = t->linear->table[0];              \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++)                \
            multiply_panel(t, panel, no_shifts);                                         \
    }
