/* Template (see vector.h): what a layer does behind what mixes its tokens, or all that it does where nothing does. */

/* Add what attention gave to what the mixture beside it gave. */
static void ISA(add_beside)(Worker *worker, const StackCall *call) {
    const Stack *stack = call->stack;
    const int64_t hidden = stack->shape.hidden;
    for (int64_t row; (row = pool_tile(worker, call->rows)) >= 0;) {
        float *out = stack->given + row * hidden;
        const float *add = stack->beside + row * hidden;
        for (int64_t i = 0; i < hidden; i++) out[i] += add[i];
    }
    pool_barrier(worker);
}

/* A layer's MLP, or its mixture, of what `from` says is there, whose sum goes to its `x_out`; returns what the next reads. */
static ISA(Source) ISA(mlp_half)(Worker *worker, const StackCall *call, const Layer *layer, ISA(Source) from) {
    const Stack *stack = call->stack;
    int64_t place = (layer - stack->layers) * LAYER_LINEARS;
    const float *sum = from.x_out;
    from.norm = layer->mid_norm;
    from.linear = layer->gate_up;
    from.place = place + GATE_UP;
    from.xielu = layer->xielu;
    if (layer->mixture)
        ISA(mix)(worker, call, layer, from);
    if (layer->mixture && layer->parallel) ISA(add_beside)(worker, call);
    if (!layer->mixture) {
        ISA(feed_forward)(worker, call, &from, layer->down->k);
        ISA(normalise)(worker, call, stack->inner, layer->down->k, layer->inner_norm);
        from = (ISA(Source)){.x = stack->inner, .linear = layer->down, .place = place + DOWN,
                             .onto = layer->parallel ? stack->given : NULL};
        ISA(linear)(worker, call, &from, stack->given, 0);
    }
    ISA(reduce)(worker, call);
    return (ISA(Source)){.x = sum, .given = stack->given, .given_norm = layer->mlp_norm};
}
