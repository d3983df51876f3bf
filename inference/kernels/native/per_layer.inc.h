/* Template (see vector.h): per-layer inputs, and where a layer ends. */

/* What the next layer reads, where this one ends with `from`: with its per-layer inputs and multiplied by its scale. */
static ISA(Source) ISA(layer_end)(Worker *worker, const StackCall *call, const Layer *layer, ISA(Source) from) {
    const Stack *stack = call->stack;
    const PerLayer *own = layer->per_layer;
    if (own) {
        float *sum = stack->hidden[from.x == stack->hidden[0]];
        from.x_out = sum;
        from.norm = NULL;
        from.linear = own->gate;
        from.place = -1;
        from.factors = call->per_layer + own->first;
        from.xielu = layer->xielu;
        ISA(linear)(worker, call, &from, stack->side, ACTIVATED);
        from = (ISA(Source)){.x = stack->side, .linear = own->projection, .place = -1};
        ISA(linear)(worker, call, &from, stack->given, 0);
        from = (ISA(Source)){.x = sum, .given = stack->given, .given_norm = own->norm};
    }
    from.scale = layer->scale;
    return from;
}

INLINE vf ISA(table_numbers)(const PerLayerInputs *inputs, int64_t at, int64_t left) {
    if (inputs->kind == KIND_FLOAT32) return vload_part((const float *)inputs->table + at, left);
    const uint16_t *from = (const uint16_t *)inputs->table + at;
    uint16_t rest[LANES] = {0};
    if (left < LANES) from = memcpy(rest, from, (size_t)left * 2);
    return inputs->kind == KIND_FLOAT16 ? vload_f16(from) : vload_bf16(from);
}

/* All layers' inputs of the step's rows, whose embeddings are x. */
static void ISA(make_per_layer)(Worker *worker, const StackCall *call, const float *x) {
    const Stack *stack = call->stack;
    const PerLayerInputs *inputs = call->ends->per_layer;
    const int64_t n = inputs->size, width = inputs->projection->n, layers = width / n;
    ISA(Source) from = {.x = x, .linear = inputs->projection, .place = -1};
    ISA(linear)(worker, call, &from, stack->per_layer, 0);
    for (int64_t i; (i = pool_tile(worker, call->rows * layers)) >= 0;) {
        int64_t row = i / layers, first = i % layers * n, id = call->tokens->ids[row];
        int64_t at = (id < call->ends->vocabulary ? id : inputs->given) * width + first;
        float *out = stack->per_layer + row * width + first;
        for (int64_t d = 0; d < n; d++) out[d] *= inputs->projection_factor;
        ISA(apply_norm)(out, ISA(rms_scale)(out, n, inputs->eps), inputs->norm, n, out);
        for (int64_t d = 0; d < n; d += LANES) {
            vf add = ISA(table_numbers)(inputs, at + d, n - d) * vset1(inputs->table_factor);
            vstore_part(out + d, n - d, (vload_part(out + d, n - d) + add) * vset1(inputs->factor));
        }
    }
    pool_barrier(worker);
}
