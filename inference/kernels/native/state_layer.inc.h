/* Template (see vector.h): layers that keep a state, and gates of attention, as phases of a stack's task. */

#include "selection.inc.h"

#define STATE_CHANNELS 256 /* of a tile */

/* The step of a layer's convolution: from the first linear's outputs to the recurrence, or to the second linear. */
static ConvolutionCall ISA(convolution_of)(const StackCall *call, const Layer *layer) {
    const Stack *stack = call->stack;
    const StateMixer *state = layer->state;
    ConvolutionCall found = state->convolution;
    found.runs = stack->runs;
    found.x = stack->qkv + state->mixed;
    found.stride = layer->qkv->n;
    found.before = state->before < 0 ? NULL : stack->qkv + state->before;
    found.behind = state->behind < 0 ? NULL : stack->qkv + state->behind;
    found.out = state->recurs || state->selection ? stack->convolved : stack->attended;
    return found;
}

/* The step of a layer's recurrence, of what was convolved. */
static RecurrenceCall ISA(recurrence_of)(const StackCall *call, const Layer *layer) {
    const Stack *stack = call->stack;
    const StateMixer *state = layer->state;
    RecurrenceCall found = state->recurrence;
    found.runs = stack->runs;
    found.queries = stack->convolved + state->queries;
    found.keys = stack->convolved + state->keys;
    found.values = stack->convolved + state->values;
    found.stride = state->convolution.channels;
    found.steps = stack->qkv + state->steps;
    found.shares = state->shares < 0 ? NULL : stack->qkv + state->shares;
    found.gates = state->gates < 0 ? NULL : stack->qkv + state->gates;
    found.steps_stride = found.shares_stride = found.gates_stride = layer->qkv->n;
    found.out = stack->attended;
    return found;
}

/* What a recurrence without shares gave a row, gated and normalised. */
static void ISA(gate_row)(const StateMixer *state, const float *gate, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        vf by = ISA(silu)(vload_part(gate + i, n - i));
        vstore_part(out + i, n - i, vload_part(out + i, n - i) * by);
    }
    int64_t size = state->norm_size;
    for (int64_t at = 0; state->norm && at < n; at += size)
        ISA(apply_norm)(out + at, ISA(rms_scale)(out + at, size, state->norm_eps), state->norm + at, size, out + at);
}

static void ISA(keep_state)(Worker *worker, const StackCall *call, const Layer *layer) {
    const ConvolutionCall convolution = ISA(convolution_of)(call, layer);
    int64_t runs = convolution.runs->count, channels = convolution.channels;
    int64_t parts = ISA(blocks)(channels, STATE_CHANNELS);
    for (int64_t i; (i = pool_tile(worker, runs * parts)) >= 0;) {
        int64_t first = i % parts * STATE_CHANNELS;
        ISA(convolution_tile)(&convolution, i / parts, first, ISA(least)(first + STATE_CHANNELS, channels));
    }
    pool_barrier(worker);
    if (layer->state->selection) ISA(select)(worker, call, layer);
    if (!layer->state->recurs) return;
    const RecurrenceCall recurrence = ISA(recurrence_of)(call, layer);
    int64_t heads = recurrence.value_heads;
    for (int64_t i; (i = pool_tile(worker, runs * heads)) >= 0;) ISA(recurrence_tile)(&recurrence, i / heads, i % heads);
    pool_barrier(worker);
    if (recurrence.shares) return;
    int64_t width = layer->out->k;
    for (int64_t row; (row = pool_tile(worker, call->rows)) >= 0;) {
        const float *gates = call->stack->qkv + row * layer->qkv->n + layer->state->gates;
        ISA(gate_row)(layer->state, gates, width, call->stack->attended + row * width);
    }
    pool_barrier(worker);
}

/* What attention gave each head times the sigmoid of its gate, behind its query or behind all. */
static void ISA(gate_attended)(Worker *worker, const StackCall *call, const Layer *layer) {
    const Stack *stack = call->stack;
    int64_t heads = stack->shape.heads, dim = stack->shape.head_dim, width = layer->qkv->n;
    int64_t apart = layer->gated == 1 ? 2 * dim : dim, first = layer->gated == 1 ? dim : heads * dim;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(call->rows * heads, ROW_BLOCK))) >= 0;)
        for (int64_t at = i * ROW_BLOCK; at < ISA(least)((i + 1) * ROW_BLOCK, call->rows * heads); at++) {
            const float *gate = stack->qkv + at / heads * width + at % heads * apart + first;
            float *out = stack->attended + at * dim;
            for (int64_t d = 0; d < dim; d += LANES) {
                vf by = vset1(1.0f) / (vset1(1.0f) + vexp(vzero() - vload_part(gate + d, dim - d)));
                vstore_part(out + d, dim - d, vload_part(out + d, dim - d) * by);
            }
        }
    pool_barrier(worker);
}
