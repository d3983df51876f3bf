/* The template of weights in few bits with a scale for each group of k: blocks of rows, and panels. Who includes it has
 * defined add_group, form_of, FORMS and the macros beside it. */

INLINE void multiply_codes(const int form, const int keeps, const int rows, const int vectors, const Groups *g) {
    const float *scales = g->scales, *shifts = g->shifts;
    for (int64_t k = 0; k < g->k; k += g->group, scales += PANEL, shifts += g->shifts_step) {
        vf sums[MOST_ROWS][8];
        UNROLL for (int m = 0; m < rows; m++)
            UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vzero();
        add_group(form, keeps, rows, vectors, g, k, g->k - k < g->group ? g->k - k : g->group, shifts, sums);
        add_scaled(rows, vectors, g, scales, sums);
    }
}

INLINE void multiply_lines(const int rows, const int vectors, const Groups *g) {
    vf sums[MOST_ROWS][8];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < vectors; v++) sums[m][v] = vzero();
    add_level_lines(rows, vectors, g, sums);
    add_scaled(rows, vectors, g, g->scales, sums);
}

/* By themselves: within another function they have too few registers. */
#define FEW_VECTORS(rows) ((rows) <= (NATIVE_ISA == 1 ? 1 : FEW_ROWS) ? PANEL / LANES : 2)
#define DEFINE_CODES(name, form, keeps, rows)                                            \
    static __attribute__((noinline)) void name##_##rows(const Groups *g) {               \
        multiply_codes(form, keeps, rows, FEW_VECTORS(rows), g);                         \
    }
#define DEFINE_FORM(name, form, rows) DEFINE_CODES(name, form, 0, rows) DEFINE_CODES(kept_##name, form, 1, rows)
#define DEFINE_ROWS(rows) \
    DEFINE_FORMS(rows)    \
    static __attribute__((noinline)) void lines_##rows(const Groups *g) { multiply_lines(rows, 2, g); }
DEFINE_ROWS(1)
DEFINE_ROWS(2)
DEFINE_ROWS(3)
DEFINE_ROWS(4)
#if MOST_ROWS > 4
DEFINE_ROWS(5)
DEFINE_ROWS(6)
#endif
#if MOST_ROWS > 6
DEFINE_ROWS(7)
DEFINE_ROWS(8)
DEFINE_ROWS(9)
DEFINE_ROWS(10)
#endif
#if MOST_ROWS > 10
DEFINE_ROWS(11)
DEFINE_ROWS(12)
#endif

#if MOST_ROWS == 12
#define BY_ROWS(name) \
    {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10,        \
     name##_11, name##_12}
#elif MOST_ROWS == 10
#define BY_ROWS(name) \
    {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10}
#elif MOST_ROWS == 6
#define BY_ROWS(name) {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6}
#else
#define BY_ROWS(name) {NULL, name##_1, name##_2, name##_3, name##_4}
#endif

enum { KEPT = FORMS, LINES = 2 * FORMS }; /* beside forms: the same, with levels kept; levels that were */
#define FORM_TABLE(name, form) [form] = BY_ROWS(name), [KEPT + (form)] = BY_ROWS(kept_##name)

/* All columns of a panel, in groups of vectors. */
INLINE void multiply_columns(int form, int64_t rows, Groups g) {
    static GroupsFunction *const functions[][MOST_ROWS + 1] = {FORM_TABLES, [LINES] = BY_ROWS(lines)};
    const int columns = LANES * (form == LINES ? 2 : FEW_VECTORS(rows));
    for (int column = 0; column < PANEL; column += columns) {
        functions[form][rows](&g);
        g.w += (form == LINES ? (int)sizeof(float) : CODES_COLUMN) * columns;
        g.scales += columns, g.shifts += columns, g.y += columns;
        if (g.levels) g.levels += columns;
    }
}

/* Where outputs begin: the bias, or nothing. */
INLINE void begin_outputs(const Linear *linear, int64_t panel, int64_t rows, float *y, int64_t y_stride) {
    const float *bias = linear->bias ? linear->bias + panel * PANEL : NULL;
    for (int64_t m = 0; m < rows; m++)
        UNROLL for (int v = 0; v < PANEL / LANES; v++)
            vstore(y + m * y_stride + v * LANES, bias ? vload(bias + v * LANES) : vzero());
}

/* Of a panel that lies within y, a group after the other for all rows. The first block decodes it. */
INLINE void multiply_blocks(int form, Groups g, int64_t rows, int64_t blocks) {
    float levels[CODES_GROUP][PANEL] __attribute__((aligned(64)));
    const Groups whole = g;
    for (int64_t k = 0; k < whole.k; k += whole.group) {
        g.k = whole.k - k < whole.group ? whole.k - k : whole.group;
        g.x = whole.x + k, g.y = whole.y;
        for (int64_t i = 0, from = 0, to; i < blocks; i++, from = to) {
            to = rows * (i + 1) / blocks;
            g.w = i ? (const char *)levels : whole.w + k * CODES_STEP;
            g.levels = i ? NULL : levels[0];
            multiply_columns(i ? LINES : KEPT + form, to - from, g);
            g.x += (to - from) * g.x_stride, g.y += (to - from) * g.y_stride;
        }
        g.scales += PANEL, g.shifts += g.shifts_step;
    }
}

/* The others: a block after the other, of a panel that ends behind y by its own outputs. */
INLINE void multiply_block(int form, Groups g, const Linear *linear, int64_t panel, int64_t rows) {
    const int64_t columns = linear->n - panel * PANEL, stride = g.y_stride;
    float *y = g.y, edge[MOST_ROWS * PANEL];
    if (columns < PANEL) g.y = edge, g.y_stride = PANEL;
    begin_outputs(linear, panel, rows, g.y, g.y_stride);
    multiply_columns(form, rows, g);
    for (int64_t m = 0; columns < PANEL && m < rows; m++)
        memcpy(y + m * stride, edge + m * PANEL, (size_t)columns * sizeof *y);
}

/* One panel, all rows of the tile, in blocks of about equal height. */
INLINE void multiply_panel(const Tile *t, int64_t panel, const float *no_shifts) {
    const Linear *linear = t->linear;
    const int64_t rows = t->row_to - t->row_from, blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t groups = (linear->k + linear->group - 1) / linear->group;
    const int form = form_of(linear);
    Groups g = {
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
        begin_outputs(linear, panel, rows, g.y, g.y_stride);
        multiply_blocks(form, g, rows, blocks);
        return;
    }
    for (int64_t i = 0, from = 0, to; i < blocks; i++, from = to) {
        to = rows * (i + 1) / blocks;
        multiply_block(form, g, linear, panel, to - from);
        g.x += (to - from) * g.x_stride, g.y += (to - from) * g.y_stride;
    }
}

