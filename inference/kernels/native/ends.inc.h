/* Template (see vector.h): what a model computes before its layers and after them, as phases of the same task. */

/* Make the 16-bit numbers in the second half of a row's memory the row's floats. */
static void ISA(widen)(float *row, int64_t n, int64_t kind) {
    const char *narrow = (const char *)row + n * 2;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) { /* what is written ends where what is still to be read begins, or before */
        const uint16_t *from = (const uint16_t *)(narrow + 2 * i);
        vstore(row + i, kind == KIND_FLOAT16 ? vload_f16(from) : vload_bf16(from));
    }
    uint16_t rest[LANES] = {0};
    memcpy(rest, narrow + 2 * i, (size_t)(n - i) * 2);
    if (i < n) vstore_part(row + i, n - i, kind == KIND_FLOAT16 ? vload_f16(rest) : vload_bf16(rest));
}

static void ISA(embed_row)(const Ends *ends, int64_t id, int64_t n, float *out) {
    int64_t kind = ends->packed_table ? ends->packed_table->kind : ends->table_kind, bytes = kind == KIND_FLOAT32 ? 4 : 2;
    char *to = (char *)out + n * (4 - bytes);
    if (ends->packed_table)
        linear_row(ends->packed_table, id, to);
    else
        memcpy(to, (const char *)ends->table + id * n * bytes, (size_t)(n * bytes));
    if (bytes == 2) ISA(widen)(out, n, kind);
    if (ends->embedding_factor == 1.0f) return;
    for (int64_t i = 0; i < n; i++) out[i] *= ends->embedding_factor;
}

/* Where in its sequence a row is; pieces before `piece` have `before` rows, and are passed by later calls, too. */
INLINE int64_t ISA(row_position)(const Step *step, int64_t row, int64_t *piece, int64_t *before) {
    for (int64_t size; row >= *before + (size = step->stops[*piece] - step->starts[*piece]); ++*piece) *before += size;
    return step->starts[*piece] + row - *before;
}

static void ISA(embed)(Worker *worker, const StackCall *call, float *out) {
    const int64_t hidden = call->stack->shape.hidden, centred = call->stack->shape.centred;
    const Ends *ends = call->ends;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(call->rows, ROW_BLOCK))) >= 0;) {
        int64_t piece = 0, before = 0;
        for (int64_t row = i * ROW_BLOCK; row < ISA(least)((i + 1) * ROW_BLOCK, call->rows); row++) {
            int64_t id = call->tokens->ids[row], given = id - ends->vocabulary;
            float *x = out + row * hidden;
            if (given >= 0) {
                memcpy(x, call->tokens->given + given * hidden, (size_t)hidden * sizeof(float));
                continue;
            }
            ISA(embed_row)(ends, id, hidden, x);
            if (ends->positions) {
                const float *add = ends->positions + ISA(row_position)(call->step, row, &piece, &before) * hidden;
                for (int64_t d = 0; d < hidden; d++) x[d] += add[d];
            }
            if (ends->first_norm) ISA(norm)(centred, x, ends->first_norm, hidden, ends->eps, x);
        }
    }
    pool_barrier(worker);
}

#include "screen.inc.h"

/* What the head reads of the rows that get logits, and the screen: the residual stream's end, normalised. */
static Input ISA(head_input)(Worker *worker, const StackCall *call, const ISA(Source) *from, int screens) {
    const Stack *stack = call->stack;
    const Ends *ends = call->ends;
    int64_t n = stack->shape.hidden, count = call->tokens->count;
    const int64_t *rows = call->tokens->rows;
    Input input = {.x = stack->normed, .x_stride = n, .rows = count};
    int prepares = linear_needs_input(call->library, ends->head);
    if (prepares) input.prepared = stack->prepared;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(count, ROW_BLOCK))) >= 0;) {
        int64_t first = i * ROW_BLOCK, last = ISA(least)(first + ROW_BLOCK, count);
        for (int64_t row = first; row < last; row++) {
            float *out = stack->normed + row * n;
            ISA(source_row)(&stack->shape, from, rows ? rows[row] : row, out, NULL);
            ISA(norm)(stack->shape.centred, out, ends->norm, n, ends->eps, out);
            for (int64_t d = 0; ends->head_factor != 1.0f && d < n; d++) out[d] *= ends->head_factor;
        }
        if (prepares) linear_input(call->library, ends->head, input.x, n, count, first, last, stack->prepared);
        if (!screens) continue;
        void *own = stack->screening.prepared;
        if (!shares_input(ends)) linear_input(call->library, ends->screen->linear, input.x, n, count, first, last, own);
        for (int64_t row = first; row < last; row++) ISA(measure)(call, &stack->screening, row);
    }
    pool_barrier(worker);
    return input;
}

static void ISA(logits)(Worker *worker, const StackCall *call, const ISA(Source) *from) {
    const Tokens *tokens = call->tokens;
    const Linear *head = call->ends->head;
    int screens = call->stack->screening.rows > 0;
    Input input = ISA(head_input)(worker, call, from, screens);
    if (screens) ISA(screen_rows)(worker, call, &input);
    int64_t count = screens && !*call->stack->screening.left ? 0 : tokens->count, panels = linear_panels(head);
    ISA(Grid) grid = ISA(grid)(call, head, tokens->count, panels);
    for (int64_t i; (i = pool_near_tile(worker, count ? grid.row_blocks * panels : 0)) >= 0;) {
        const ISA(Cut) at = ISA(cut)(&grid, i);
        linear_tile(call->library, head, &input, at.first, at.last, at.panel, at.panel + 1, tokens->logits, head->n);
    }
    pool_barrier(worker);
    if (!tokens->statistics.indices) return;
    Statistics statistics = tokens->statistics;
    statistics.rows = count;
    row_statistics(worker, &statistics);
}
