/* Template (see vector.h): decoder layers as phases of one task.
 *
 * Few rows: five phases a layer. Norms and preparations of inputs belong to the linear's phase: each
 * thread that takes a tile of it first makes the input for itself, from what earlier phases left.
 * Many rows: they are phases of their own, cut by rows. The arithmetic is the same. */
#include "amx.h"
#include "layer.h"

#define ROW_BLOCK 8  /* rows of a tile where rows are independent of each other */
#define LINEAR_ROWS 64 /* of a linear's tile, see linear_tile_rows */

/* What a phase's linear reads: y = linear(norm(x + residual * norm(given))). */
typedef struct {
    const float *x;          /* (rows, linear->k), or with a residual (rows, hidden) */
    float *x_out;            /* where the sum goes; NULL: x is the linear's input as it is */
    const float *given;      /* NULL: none yet */
    const float *given_norm; /* NULL: none */
    const float *norm;       /* NULL: none */
    const Linear *linear;
    int64_t place;           /* which of all layers' linears that is, for adapters; -1: none of them */
    int keeps_normed;        /* 1: the norm is left in stack->normed, too */
    float *onto;             /* where what the linear gives is added, in place of y; NULL: nowhere */
    const float *factors;    /* of a row, what its activated numbers are multiplied by; NULL: nothing */
    float scale;             /* what the sum of x and `given` is multiplied by; 0: nothing */
    const float *xielu;      /* of an MLP with that activation */
} ISA(Source);

INLINE int64_t ISA(blocks)(int64_t n, int64_t size) { return (n + size - 1) / size; }
INLINE int64_t ISA(least)(int64_t a, int64_t b) { return a < b ? a : b; }

#include "low_rank.inc.h"

/* The residual stream of one row, and its norm. */
static void ISA(source_row)(const Shape *shape, const ISA(Source) *from, int64_t row, float *sum, float *normed) {
    int64_t n = shape->hidden;
    const float *x = from->x + row * n, *given = from->given ? from->given + row * n : NULL;
    const vf residual = vset1(shape->residual);
    if (!given)
        memmove(sum, x, (size_t)n * sizeof(float));
    else if (from->given_norm) {
        const vf scale = vset1(ISA(rms_scale)(given, n, shape->eps));
        for (int64_t i = 0; i < n; i += LANES) {
            vf add = vload_part(given + i, n - i) * scale * vload_part(from->given_norm + i, n - i);
            vstore_part(sum + i, n - i, vload_part(x + i, n - i) + add * residual);
        }
    } else {
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) vstore(sum + i, vload(x + i) + vload(given + i) * residual);
        if (i < n) vstore_part(sum + i, n - i, vload_part(x + i, n - i) + vload_part(given + i, n - i) * residual);
    }
    for (int64_t i = 0; from->scale != 0 && i < n; i++) sum[i] *= from->scale;
    if (!normed) return;
    if (from->norm)
        ISA(norm)(shape->centred, sum, from->norm, n, shape->eps, normed);
    else if (normed != sum)
        memcpy(normed, sum, (size_t)n * sizeof(float));
}

/* All rows' inputs, and what adapters make of them, in this thread's own memory; who has the first tile also keeps
 * the sums for later phases. */
static Input ISA(own_input)(const StackCall *call, const ISA(Source) *from, float *own, int keep) {
    const Shape *shape = &call->stack->shape;
    Input input = {.x = from->x, .x_stride = from->linear->k, .rows = call->rows};
    void *prepared = own;
    if (from->x_out) {
        for (int64_t row = 0; row < call->rows; row++) {
            float *mine = own + row * shape->hidden, *sum = keep ? from->x_out + row * shape->hidden : mine;
            ISA(source_row)(shape, from, row, sum, mine);
            float *normed = call->stack->normed + row * shape->hidden;
            if (keep && from->keeps_normed) memcpy(normed, mine, (size_t)shape->hidden * sizeof(float));
        }
        input.x = own;
        prepared = own + (call->rows * shape->hidden + 15) / 16 * 16;
    }
    if (linear_needs_input(call->library, from->linear)) {
        linear_input(call->library, from->linear, input.x, input.x_stride, call->rows, 0, call->rows, prepared);
        input.prepared = prepared;
    }
    ISA(lower)(call, from->place, &input, from->linear->k, 0, call->rows, own + call->stack->own_inputs);
    return input;
}

/* The same for many rows, as a phase; nothing to do if the linear reads x as it is. */
static Input ISA(shared_input)(Worker *worker, const StackCall *call, const ISA(Source) *from) {
    const Stack *stack = call->stack;
    int64_t hidden = stack->shape.hidden, rows = call->rows;
    int prepares = linear_needs_input(call->library, from->linear);
    Input input = {.x = from->x, .x_stride = from->linear->k, .rows = rows};
    if (from->x_out) input.x = stack->normed;
    if (prepares) input.prepared = stack->prepared;
    if (!from->x_out && !prepares && !call->adapters) return input;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(rows, ROW_BLOCK))) >= 0;) {
        int64_t first = i * ROW_BLOCK, last = ISA(least)(first + ROW_BLOCK, rows);
        for (int64_t row = first; from->x_out && row < last; row++)
            ISA(source_row)(&stack->shape, from, row, from->x_out + row * hidden, stack->normed + row * hidden);
        if (prepares)
            linear_input(call->library, from->linear, input.x, input.x_stride, rows, first, last, stack->prepared);
        ISA(lower)(call, from->place, &input, from->linear->k, first, last, stack->low);
    }
    pool_barrier(worker);
    return input;
}

/* How a linear is cut into tiles of rows and of one panel. */
typedef struct {
    int64_t all_rows, rows, row_blocks, panels;
    int by_rows; /* the inputs of some rows stay near while all panels pass; else a panel while all rows do */
} ISA(Grid);

typedef struct {
    int64_t first, last, panel;
} ISA(Cut);

/* Tiles are as small as they can be: a thread's follow each other, so that more of them cost nothing. */
INLINE ISA(Grid) ISA(grid)(const StackCall *call, const Linear *linear, int64_t rows, int64_t panels) {
    int64_t most = linear_tile_rows(call->library, linear, rows, panels, LINEAR_ROWS);
    return (ISA(Grid)){rows, most, ISA(blocks)(rows, most), panels, linear_by_amx(call->library, linear)};
}

INLINE ISA(Cut) ISA(cut)(const ISA(Grid) *grid, int64_t tile) {
    int64_t block = grid->by_rows ? tile / grid->panels : tile % grid->row_blocks, first = block * grid->rows;
    return (ISA(Cut)){first, ISA(least)(first + grid->rows, grid->all_rows),
                      grid->by_rows ? tile % grid->panels : tile / grid->row_blocks};
}

#include "gated.inc.h"
#include "ungated.inc.h"
#include "multiplied.inc.h"

enum { AS_IT_IS = 0, GATED = 1, ACTIVATED = 2 };

/* y = linear(source), as one phase or two; GATED: the outputs are gates and ups, and go to inner. */
static void ISA(linear)(Worker *worker, const StackCall *call, const ISA(Source) *from, float *y, int form) {
    const int gated = form == GATED;
    const Stack *stack = call->stack;
    float *own = stack->own + worker->index * stack->own_size;
    const float *low = call->few ? own + stack->own_inputs : stack->low;
    Input input;
    if (!call->few) input = ISA(shared_input)(worker, call, from);
    int64_t panels = gated ? from->linear->n / 2 / PANEL : linear_panels(from->linear), ready = !call->few;
    ISA(Grid) grid = ISA(grid)(call, from->linear, call->rows, panels);
    for (int64_t i; (i = pool_near_tile(worker, grid.row_blocks * panels)) >= 0;) {
        const ISA(Cut) at = ISA(cut)(&grid, i);
        if (!ready || (call->few && i == 0)) /* who takes the first tile in another's stead keeps the sums now */
            input = ISA(own_input)(call, from, own, i == 0);
        ready = 1;
        if (gated) {
            ISA(gated_tile)(call, from, &input, low, at.first, at.last, at.panel);
            continue;
        }
        if (from->onto) {
            ISA(added_tile)(call, from, &input, low, at.first, at.last, at.panel);
            continue;
        }
        int64_t n = from->linear->n, column = at.panel * PANEL;
        linear_tile(call->library, from->linear, &input, at.first, at.last, at.panel, at.panel + 1, y, n);
        ISA(raise)(call, from->place, n, low, at.first, at.last, at.panel, at.panel + 1, y, n);
        if (form == ACTIVATED)
            ISA(activate_tile)(stack->shape.activation, from->xielu, y + column, n, at.first, at.last, n - column);
        if (from->factors)
            ISA(multiply_tile)(call, from->factors + column, y + column, n, at.first, at.last, n - column);
    }
    pool_barrier(worker);
}

/* An MLP up to its `inner` numbers. */
static void ISA(feed_forward)(Worker *worker, const StackCall *call, const ISA(Source) *from, int64_t inner) {
    const Stack *stack = call->stack;
    if (from->linear->n == inner) {
        ISA(linear)(worker, call, from, stack->inner, ACTIVATED);
        return;
    }
    int gated = inner % PANEL == 0; /* else gates and ups share a panel, and wait for each other */
    ISA(linear)(worker, call, from, stack->gate_up, gated);
    if (gated) return;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(call->rows, ROW_BLOCK))) >= 0;)
        for (int64_t row = i * ROW_BLOCK; row < ISA(least)((i + 1) * ROW_BLOCK, call->rows); row++) {
            const float *gates = stack->gate_up + row * 2 * inner;
            ISA(gate)(stack->shape.activation, gates, gates + inner, inner, stack->inner + row * inner);
        }
    pool_barrier(worker);
}

#include "mixture.inc.h"

#include "state_layer.inc.h"

#include "latent_layer.inc.h"

static void ISA(attend_layer)(Worker *worker, const StackCall *call, const Layer *layer, int trims) {
    Stack *stack = call->stack;
    const Shape *shape = &stack->shape;
    int64_t dim = layer->cache.key_dim, width = layer->qkv->n, keys = layer->cache.kv_heads * dim;
    int64_t apart = dim * (1 + (layer->gated == 1)), queries = shape->heads * dim * (1 + (layer->gated != 0));
    int64_t values = queries + 2 * keys == width ? queries + keys : queries; /* keys are values, too */
    AttentionCall attention = {
        .query = {stack->qkv, width, apart},
        .key = {stack->qkv + queries, width, dim},
        .value = {stack->qkv + values, width, dim},
        .borrows = layer->borrows,
        .out = stack->attended, .heads = shape->heads,
        .cache = layer->cache, .how = layer->how, .step = call->step, .plan = &stack->plans[layer->plan],
        .shaping = {
            .cosines = layer->rotary < 0 ? NULL : call->cosines[layer->rotary],
            .sines = layer->rotary < 0 ? NULL : call->sines[layer->rotary],
            .by_position = call->by_position, .rotary_dim = layer->rotary_dim, .interleaved = shape->interleaved, .eps = shape->eps,
            .query_norm = layer->query_norm, .query_norm_size = layer->query_norm_size,
            .key_norm = layer->key_norm, .key_norm_size = layer->key_norm_size, .centred = shape->centred,
            .value_norm = layer->value_norm,
            .late = layer->late_norms, .query_scales = layer->query_scales,
        },
    };
    ISA(attention)(worker, &attention, trims);
    if (layer->gated) ISA(gate_attended)(worker, call, layer);
}

static void ISA(finish)(Worker *worker, const StackCall *call, const ISA(Source) *from) {
    int64_t hidden = call->stack->shape.hidden;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(call->rows, ROW_BLOCK))) >= 0;)
        for (int64_t row = i * ROW_BLOCK; row < ISA(least)((i + 1) * ROW_BLOCK, call->rows); row++)
            ISA(source_row)(&call->stack->shape, from, row, from->x_out + row * hidden, NULL);
    pool_barrier(worker);
}

/* Add up what all shares of a layer gave. */
static void ISA(reduce)(Worker *worker, const StackCall *call) {
    Stack *stack = call->stack;
    if (!stack->reduce) return;
    amx_release(); /* it may call what shapes tiles, too */
    while (worker->index == 0 && pool_tile(worker, 1) >= 0)
        if (!stack->lost) stack->lost = stack->reduce(stack->reduces, stack->given, call->rows * stack->shape.hidden);
    pool_barrier(worker);
}

#include "layer_mlp.inc.h"

#include "per_layer.inc.h"

/* What a layer does with what attention gave to each row, whose residual stream is x; returns what the next reads. */
static ISA(Source) ISA(after_attention)(Worker *worker, const StackCall *call, const Layer *layer,
                                        float *attended, const float *x, float *sum) {
    const Stack *stack = call->stack;
    ISA(normalise)(worker, call, attended, layer->out->k, layer->attended_norm);
    int64_t place = (layer - stack->layers) * LAYER_LINEARS;
    ISA(Source) from = {.x = attended, .linear = layer->out, .place = place + OUT};
    ISA(linear)(worker, call, &from, layer->parallel && layer->mixture ? stack->beside : stack->given, 0);
    if (!layer->parallel) ISA(reduce)(worker, call);
    from = (ISA(Source)){.x = x, .x_out = sum, .given = layer->parallel ? NULL : stack->given,
                         .given_norm = layer->attention_norm};
    if (has_mlp(layer)) return ISA(mlp_half)(worker, call, layer, from);
    from.x_out = NULL;
    return from;
}

/* The rows that get logits, of what attention gave and of the residual stream, one behind the other. */
static void ISA(pick)(Worker *worker, const StackCall *call, int64_t width, float *attended, const float *from, float *x) {
    const Stack *stack = call->stack;
    const Tokens *tokens = call->tokens;
    int64_t hidden = stack->shape.hidden;
    for (int64_t row; (row = pool_tile(worker, tokens->count)) >= 0;) {
        int64_t at = tokens->rows[row];
        memcpy(attended + row * width, stack->attended + at * width, (size_t)width * sizeof(float));
        memcpy(x + row * hidden, from + at * hidden, (size_t)hidden * sizeof(float));
        if (call->adapters) stack->adapters_left[row] = call->adapters[at];
    }
    pool_barrier(worker);
}

#include "ends.inc.h"

/* The last layer from its attention on, and the end, of the rows alone that get logits: nobody reads the others'. */
static void ISA(trimmed_end)(Worker *worker, const StackCall *call, const Layer *layer, float *x, float *picked) {
    const Stack *stack = call->stack;
    Tokens tokens = *call->tokens;
    if (!tokens.count) return;
    ISA(pick)(worker, call, layer->out->k, stack->qkv, x, picked); /* both have been read */
    tokens.rows = NULL;
    StackCall rest = *call;
    rest.origins = call->tokens->rows;
    rest.tokens = &tokens;
    rest.rows = tokens.count;
    rest.adapters = call->adapters ? stack->adapters_left : NULL;
    ISA(Source) from = ISA(after_attention)(worker, &rest, layer, stack->qkv, picked, x);
    from = ISA(layer_end)(worker, &rest, layer, from);
    ISA(logits)(worker, &rest, &from);
}

void ISA(stack_task)(Worker *worker, void *argument) {
    const StackCall *call = argument;
    const Stack *stack = call->stack;
    const Layer *end = stack->layers + stack->count;
    ISA(Source) from = {.x = call->ends ? stack->hidden[1] : call->in};
    if (call->ends) ISA(embed)(worker, call, stack->hidden[1]);
    if (call->ends && call->ends->per_layer) ISA(make_per_layer)(worker, call, stack->hidden[1]);
    for (const Layer *layer = stack->layers; layer < end; layer++) {
        int trims = call->trims && layer + 1 == end, odd = from.x == stack->hidden[0];
        float *sum = stack->hidden[odd], *next = stack->hidden[!odd];
        from.x_out = sum;
        if (!layer->qkv) {
            from = ISA(layer_end)(worker, call, layer, ISA(mlp_half)(worker, call, layer, from));
            continue;
        }
        from.norm = layer->input_norm;
        from.linear = layer->qkv;
        from.place = (layer - stack->layers) * LAYER_LINEARS + QKV;
        ISA(linear)(worker, call, &from, stack->qkv, 0);
        if (layer->state)
            ISA(keep_state)(worker, call, layer);
        else if (layer->latent)
            ISA(attend_latents)(worker, call, layer, trims);
        else
            ISA(attend_layer)(worker, call, layer, trims);
        if (trims) {
            ISA(trimmed_end)(worker, call, layer, sum, next);
            return;
        }
        from = ISA(after_attention)(worker, call, layer, stack->attended, sum, next);
        from = ISA(layer_end)(worker, call, layer, from);
    }
    if (call->ends) {
        if (call->tokens->count) ISA(logits)(worker, call, &from);
        return;
    }
    from.x_out = call->out;
    ISA(finish)(worker, call, &from);
}
