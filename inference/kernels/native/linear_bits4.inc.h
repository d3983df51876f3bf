/* The template of weights in 4 bits (linear.h), for vectors of one ISA: two operations for a vector of weights, three
 * where groups have zero points. */
#include "linear_groups.inc.h"

/* What a weight's level is: one of sixteen by its code; or its code and what its group adds, minus its zero point. As
 * AVX-512 finds sixteen levels as fast as it converts codes, it takes the second only where there are zero points. */
enum { BY_TABLE, SHIFTED };

#define FORMS 2
#define DEFINE_FORMS(rows) DEFINE_FORM(table, BY_TABLE, rows) DEFINE_FORM(shifted, SHIFTED, rows)
#define FORM_TABLES FORM_TABLE(table, BY_TABLE), FORM_TABLE(shifted, SHIFTED)
#define CODES_STEP (BITS4_BYTES / BITS4_CODES) /* bytes of a panel's k */
#define CODES_COLUMN 4                         /* and of an output's codes that lie together */

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
INLINE void add_group(const int form, const int keeps, const int rows, const int vectors, const Groups *g, int64_t from,
                      int64_t left, const float *shifts, vf sums[MOST_ROWS][8]) {
    const LevelTable table = level_table(form, g->table);
    const float *x = g->x + from, *lower = x + (rows + 1) / 2 * g->x_stride;
    const char *w = g->w + from / BITS4_CODES * BITS4_BYTES;
    int64_t stride = g->x_stride;
    float *kept = keeps ? g->levels : NULL;
    vi words[8];
    vf shift[8];
    UNROLL for (int v = 0; v < vectors; v++) shift[v] = form == SHIFTED ? vload(shifts + v * LANES) : vzero();
    for (; left >= BITS4_CODES; left -= BITS4_CODES, w += BITS4_BYTES, x += BITS4_CODES, lower += BITS4_CODES) {
        __builtin_prefetch(w + CODES_AHEAD);
        if (vectors * LANES == PANEL) __builtin_prefetch(w + CODES_AHEAD + 64);
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

INLINE int form_of(const Linear *linear) {
    return NATIVE_ISA == 2 ? (linear->zeros ? SHIFTED : BY_TABLE) : linear->is_whole ? SHIFTED : BY_TABLE;
}

#include "linear_group_blocks.inc.h"

/* `no_shifts`: of whole numbers that all groups count from the same one. */
#define DEFINE_BITS4_LINEAR(name)                                                        \
    void name(const Tile *t) {                                                           \
        float no_shifts[PANEL];                                                          \
        for (int i = 0; i < PANEL; i++) no_shifts[i] = t->linear->table[0];              \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++)                \
            multiply_panel(t, panel, no_shifts);                                         \
    }
