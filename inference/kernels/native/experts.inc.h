/* Template (see vector.h): a mixture's experts, as phases of one task.
 *
 * The arithmetic of a row depends on that row alone: each pair of a row and an expert is computed for itself, and a
 * row's results are added up in the order of its experts' numbers. */
#include "experts.h"

#include <string.h>

#define PAIR_BLOCK 8 /* of a tile where pairs, or rows, are independent of each other */

INLINE int64_t ISA(blocks)(int64_t n, int64_t size) { return (n + size - 1) / size; }
INLINE int64_t ISA(least)(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vf ISA(expert_activation)(const Gating *gating, vf x) {
    if (gating->activation != SILU) return ISA(activate)(gating->activation, x);
    return x / (vset1(1.0f) + vexp(vzero() - vset1(gating->factor) * x));
}

INLINE vf ISA(gated)(const Gating *gating, vf gate, vf up) {
    const vf limit = vset1(gating->limit);
    gate = vselect(gate > limit, limit, gate); /* NaN stays NaN */
    up = vselect(up > limit, limit, vselect(up < vzero() - limit, vzero() - limit, up));
    return ISA(expert_activation)(gating, gate) * (up + vset1(gating->offset));
}

/* What the second linear reads of one row; `up` is NULL without gates. */
static void ISA(gate_row)(const Gating *gating, const float *gate, const float *up, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        const vf first = vload_part(gate + i, n - i);
        vstore_part(out + i, n - i, up ? ISA(gated)(gating, first, vload_part(up + i, n - i))
                                       : ISA(expert_activation)(gating, first));
    }
}

/* Inputs of the first linears, in the order of the pairs, if that is needed. */
static void ISA(gather)(Worker *worker, const ExpertsCall *call) {
    const ExpertsWork *work = call->work;
    const int64_t hidden = call->experts->hidden, pairs = work->gathers ? work->pairs : 0;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(pairs, PAIR_BLOCK))) >= 0;)
        for (int64_t pair = i * PAIR_BLOCK; pair < ISA(least)((i + 1) * PAIR_BLOCK, work->pairs); pair++) {
            const Busy *busy = work->busy + work->whose[pair];
            const Linear *linear = call->experts->up[busy->expert];
            memcpy(work->gathered + pair * hidden, call->x + work->row[pair] * hidden, (size_t)hidden * sizeof(float));
            if (linear_needs_input(call->library, linear))
                linear_input(call->library, linear, work->gathered + busy->first * hidden, hidden, busy->rows,
                             pair - busy->first, pair - busy->first + 1, work->prepared + busy->up_input);
        }
    pool_barrier(worker);
}

/* Gates and ups, where they share a panel, once all of them are there. */
static void ISA(gate_all)(Worker *worker, const ExpertsCall *call) {
    const ExpertsWork *work = call->work;
    const int64_t inner = call->experts->inner;
    for (int64_t pair; (pair = pool_tile(worker, work->pairs)) >= 0;) {
        const float *gates = work->wide + pair * 2 * inner;
        ISA(gate_row)(&call->experts->gating, gates, gates + inner, inner, work->inner + pair * inner);
    }
    pool_barrier(worker);
}

/* Inputs of the second linears, if any needs that. */
static void ISA(prepare)(Worker *worker, const ExpertsCall *call) {
    const ExpertsWork *work = call->work;
    const int64_t inner = call->experts->inner, pairs = work->prepares ? work->pairs : 0;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(pairs, PAIR_BLOCK))) >= 0;)
        for (int64_t pair = i * PAIR_BLOCK; pair < ISA(least)((i + 1) * PAIR_BLOCK, work->pairs); pair++) {
            const Busy *busy = work->busy + work->whose[pair];
            const Linear *linear = call->experts->down[busy->expert];
            if (linear_needs_input(call->library, linear))
                linear_input(call->library, linear, work->inner + busy->first * inner, inner, busy->rows,
                             pair - busy->first, pair - busy->first + 1, work->prepared + busy->down_input);
        }
    pool_barrier(worker);
}

/* A tile of one expert's linear: rows of its own, and a panel. */
typedef struct {
    const Busy *busy;
    int64_t first, last, panel;
} ISA(Piece);

INLINE ISA(Piece) ISA(piece)(const Library *library, const Linear *const *linears, const ExpertsWork *work,
                             const int64_t *tiles, int down, int64_t panels, int64_t tile) {
    int64_t low = 0, high = work->busy_count; /* tiles[low] <= tile < tiles[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (tiles[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    const Busy *busy = work->busy + low;
    const int64_t rows = down ? busy->down_rows : busy->up_rows, blocks = ISA(blocks)(busy->rows, rows);
    const int64_t at = tile - tiles[low], by_rows = linear_by_amx(library, linears[busy->expert]);
    const int64_t first = (by_rows ? at / panels : at % blocks) * rows;
    return (ISA(Piece)){busy, first, ISA(least)(first + rows, busy->rows), by_rows ? at % panels : at / blocks};
}

/* Some rows' gates and ups of a panel, which the caches hold until they are one panel of inner. */
static void ISA(up_tile)(const ExpertsCall *call, const ISA(Piece) *at) {
    float sides[MOST_TILE_ROWS * 2 * PANEL] __attribute__((aligned(64))); /* [row][gates, ups] */
    const ExpertsWork *work = call->work;
    const Experts *experts = call->experts;
    const Busy *busy = at->busy;
    const Linear *linear = experts->up[busy->expert];
    const int64_t inner = experts->inner, gates = experts->gating.gates, stride = 2 * PANEL;
    const Input input = {
        .x = work->gathers ? work->gathered + busy->first * experts->hidden
                           : call->x + work->row[busy->first] * experts->hidden,
        .x_stride = experts->hidden, .prepared = work->prepared + busy->up_input, .rows = busy->rows,
    };
    if (gates && inner % PANEL) {
        linear_tile(call->library, linear, &input, at->first, at->last, at->panel, at->panel + 1,
                    work->wide + busy->first * 2 * inner, 2 * inner);
        return;
    }
    for (int64_t side = 0; side < 1 + gates; side++) {
        const int64_t panel = at->panel + side * (inner / PANEL); /* y is where row 0 and column 0 would be */
        float *y = sides + side * PANEL - at->first * stride - panel * PANEL;
        linear_tile(call->library, linear, &input, at->first, at->last, panel, panel + 1, y, stride);
    }
    const int64_t column = at->panel * PANEL, width = ISA(least)(PANEL, inner - column);
    for (int64_t row = at->first; row < at->last; row++) {
        const float *from = sides + (row - at->first) * stride;
        ISA(gate_row)(&experts->gating, from, gates ? from + PANEL : NULL, width,
                      work->inner + (busy->first + row) * inner + column);
    }
}

static void ISA(down_tile)(const ExpertsCall *call, const ISA(Piece) *at) {
    const ExpertsWork *work = call->work;
    const Experts *experts = call->experts;
    const Busy *busy = at->busy;
    const Input input = {
        .x = work->inner + busy->first * experts->inner, .x_stride = experts->inner,
        .prepared = work->prepared + busy->down_input, .rows = busy->rows,
    };
    linear_tile(call->library, experts->down[busy->expert], &input, at->first, at->last, at->panel, at->panel + 1,
                work->found + busy->first * experts->hidden, experts->hidden);
}

/* What each row's experts gave, in their order, behind what all rows have. */
static void ISA(combine)(Worker *worker, const ExpertsCall *call) {
    const ExpertsWork *work = call->work;
    const int64_t hidden = call->experts->hidden, chosen = call->routing->chosen;
    for (int64_t row; (row = pool_tile(worker, call->routing->rows)) >= 0;) {
        const int64_t *pairs = work->pair + row * chosen;
        const float *weights = work->weight + row * chosen;
        const float *shared = call->shared ? call->shared + row * hidden : NULL;
        const vf factor = vset1(call->factors ? call->factors[row] : 1.0f);
        float *y = call->y + row * hidden;
        for (int64_t i = 0; i < hidden; i += LANES) {
            vf sum = vzero();
            if (shared) sum = vload_part(shared + i, hidden - i) * factor;
            for (int64_t j = 0; j < chosen && pairs[j] >= 0; j++)
                sum = vfma(vload_part(work->found + pairs[j] * hidden + i, hidden - i), vset1(weights[j]), sum);
            vstore_part(y + i, hidden - i, sum);
        }
    }
    pool_barrier(worker);
}

void ISA(experts)(Worker *worker, const ExpertsCall *call) {
    const ExpertsWork *work = call->work;
    const Experts *experts = call->experts;
    const int64_t up_panels = experts_up_panels(experts), down_panels = ISA(blocks)(experts->hidden, PANEL);
    ISA(gather)(worker, call);
    for (int64_t i; (i = pool_near_tile(worker, work->up_tiles[work->busy_count])) >= 0;) {
        const ISA(Piece) at = ISA(piece)(call->library, experts->up, work, work->up_tiles, 0, up_panels, i);
        ISA(up_tile)(call, &at);
    }
    pool_barrier(worker);
    if (experts->gating.gates && experts->inner % PANEL) ISA(gate_all)(worker, call);
    ISA(prepare)(worker, call);
    for (int64_t i; (i = pool_near_tile(worker, work->down_tiles[work->busy_count])) >= 0;) {
        const ISA(Piece) at = ISA(piece)(call->library, experts->down, work, work->down_tiles, 1, down_panels, i);
        ISA(down_tile)(call, &at);
    }
    pool_barrier(worker);
    ISA(combine)(worker, call);
}
