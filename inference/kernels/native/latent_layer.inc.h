/* Template (see vector.h): layers whose heads attend to latents, as phases of a stack's task.
 *
 * Queries are made, if there is a linear for that; then in one phase each head's is multiplied so that it can be compared
 * with latents, while latents are normalised and rotations done; then come attention, and each head's values. */

/* What the queries are made of, normalised, and they of it. */
static void ISA(make_queries)(Worker *worker, const StackCall *call, const Layer *layer) {
    const LatentMixer *mixer = layer->latent;
    const LatentWork *work = &call->stack->latents;
    const int64_t size = mixer->queries->k, width = layer->qkv->n;
    for (int64_t row; (row = pool_tile(worker, call->rows)) >= 0;) {
        const float *x = call->stack->qkv + row * width;
        ISA(apply_norm)(x, ISA(rms_scale)(x, size, mixer->query_eps), mixer->query_norm, size, work->lowered + row * size);
    }
    pool_barrier(worker);
    const ISA(Source) from = {.x = work->lowered, .linear = mixer->queries, .place = -1};
    ISA(linear)(worker, call, &from, work->queries, AS_IT_IS);
}

/* The queries as the first linear gave them, or as they were made of it. */
static Heads ISA(queries_of)(const StackCall *call, const Layer *layer) {
    const LatentMixer *mixer = layer->latent;
    const int64_t dim = latent_query_dim(mixer);
    if (mixer->queries) return (Heads){call->stack->latents.queries, mixer->heads * dim, dim};
    return (Heads){call->stack->qkv, layer->qkv->n, dim};
}

/* A row's latent normalised, in place, and all that is rotated of it. */
static void ISA(shape_latent)(const StackCall *call, const Layer *layer, const int64_t *positions, int64_t row) {
    const LatentMixer *mixer = layer->latent;
    const Shape *shape = &call->stack->shape;
    const Heads queries = ISA(queries_of)(call, layer);
    const int64_t rank = mixer->rank, rotated = mixer->rotated, heads = mixer->heads;
    const int64_t at = (call->by_position ? positions[row] : row) * layer->rotary_dim;
    const float *cosines = layer->rotary < 0 ? NULL : call->cosines[layer->rotary] + at;
    const float *sines = layer->rotary < 0 ? NULL : call->sines[layer->rotary] + at;
    float *latent = call->stack->qkv + row * layer->qkv->n + latent_first(mixer);
    ISA(apply_norm)(latent, ISA(rms_scale)(latent, rank, mixer->latent_eps), mixer->latent_norm, rank, latent);
    if (cosines) ISA(rotate)(latent + rank, cosines, sines, rotated, shape->interleaved);
    for (int64_t h = 0; h < heads; h++) {
        float *out = call->stack->latents.absorbed + (row * heads + h) * (rank + rotated) + rank;
        memcpy(out, ISA(head_of)(&queries, row, h) + mixer->nope, (size_t)rotated * sizeof(float));
        if (cosines) ISA(rotate)(out, cosines, sines, rotated, shape->interleaved);
    }
}

/* Each head's query multiplied by what makes its keys, and rows shaped beside that. */
static void ISA(absorb)(Worker *worker, const StackCall *call, const Layer *layer) {
    const LatentMixer *mixer = layer->latent;
    const LatentWork *work = &call->stack->latents;
    const Heads queries = ISA(queries_of)(call, layer);
    const int64_t dim = latent_key_dim(mixer);
    const Products products = {mixer->keys, mixer->heads, call->rows, queries.first, queries.row_stride,
                               queries.head_stride, work->absorbed, mixer->heads * dim, dim, work->prepared,
                               products_bytes(call->library, mixer->keys, mixer->heads, call->rows)};
    products_prepare(worker, &products);
    const ProductTiles cut = products_cut(call->library, &products);
    for (int64_t i; (i = pool_tile(worker, call->rows + cut.tiles)) >= 0;) {
        if (i < call->rows)
            ISA(shape_latent)(call, layer, work->positions, i);
        else
            products_tile(call->library, &products, &cut, i - call->rows);
    }
    pool_barrier(worker);
}

/* Each head's values of its sum of latents. */
static void ISA(expand)(Worker *worker, const StackCall *call, const Layer *layer) {
    const LatentMixer *mixer = layer->latent;
    const LatentWork *work = &call->stack->latents;
    const Products products = {mixer->values, mixer->heads, call->rows, work->found, mixer->heads * mixer->rank,
                               mixer->rank, call->stack->attended, layer->out->k, mixer->value, work->prepared,
                               products_bytes(call->library, mixer->values, mixer->heads, call->rows)};
    products_prepare(worker, &products);
    const ProductTiles cut = products_cut(call->library, &products);
    for (int64_t i; (i = pool_tile(worker, cut.tiles)) >= 0;) products_tile(call->library, &products, &cut, i);
    pool_barrier(worker);
}

static void ISA(attend_latents)(Worker *worker, const StackCall *call, const Layer *layer, int trims) {
    Stack *stack = call->stack;
    const LatentMixer *mixer = layer->latent;
    const int64_t dim = latent_key_dim(mixer), width = layer->qkv->n;
    if (mixer->queries) ISA(make_queries)(worker, call, layer);
    ISA(absorb)(worker, call, layer);
    const float *latents = stack->qkv + latent_first(mixer);
    const AttentionCall attention = {
        .query = {stack->latents.absorbed, mixer->heads * dim, dim},
        .key = {latents, width, dim}, .value = {latents, width, dim},
        .out = stack->latents.found, .heads = mixer->heads,
        .cache = layer->cache, .how = layer->how, .step = call->step, .plan = &stack->plans[layer->plan],
    };
    ISA(attention)(worker, &attention, trims);
    ISA(expand)(worker, call, layer);
}
