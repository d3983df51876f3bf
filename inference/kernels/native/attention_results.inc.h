/* Template: the results of a tile's splits, put together, by whoever has computed the last of them. */

INLINE float *ISA(out_of)(const ISA(Job) *job, int64_t row, int64_t *head) {
    *head = job->kv_head * job->group + row % job->group;
    int64_t token = job->tile->row + row / job->group;
    return job->call->out + (token * job->call->heads + *head) * job->call->cache.value_dim;
}

static void ISA(finish_tile)(const ISA(Job) *job) {
    int64_t sum_size = job->call->cache.value_dim + 2, head;
    for (int64_t r = 0; r < job->tile->queries * job->group; r++) {
        float *out = ISA(out_of)(job, r, &head);
        ISA(finish_row)(job->call, job->at.result + r * sum_size, head, out);
    }
}

/* The tile in which a query's splits are put together. */
INLINE const Tile *ISA(home_of)(const ISA(Job) *job, int64_t query) {
    return job->tile->members ? &job->call->plan->tiles[job->tile->members[query].home] : job->tile;
}

/* Where a split's results lie of the tile's first query. */
INLINE float *ISA(partial_of)(const ISA(Job) *job, const Tile *tile, int64_t split) {
    int64_t rows = tile->queries * job->group, before = (job->kv_head * tile->splits + split) * rows;
    return job->call->plan->partials + (tile->partial + before) * (job->call->cache.value_dim + 2);
}

/* Put a split's results, of the queries [first, last), where the last part of the tile will find them. */
static void ISA(keep_partial)(const ISA(Job) *job, int64_t split, int64_t first, int64_t last) {
    int64_t sum_size = job->call->cache.value_dim + 2, size = job->group * sum_size;
    for (int64_t i = 0; i < job->tile->queries; i++) {
        float *to = ISA(partial_of)(job, ISA(home_of)(job, i), split) + (job->tile->members ? 0 : i * size);
        if (i >= first && i < last)
            memcpy(to, job->at.split + i * size, (size_t)size * sizeof(float));
        else
            for (int64_t g = 1; g <= job->group; g++) to[g * sum_size - 1] = 0;
    }
}

/* A part of `tile` is done: the last one, of its own or shared, puts all of them together. */
static void ISA(combine_parts)(const ISA(Job) *job, const Tile *tile) {
    ISA(Job) home = *job;
    home.tile = tile;
    int64_t rows = tile->queries * job->group, sum_size = job->call->cache.value_dim + 2;
    const float *partial = ISA(partial_of)(&home, tile, 0);
    _Atomic int32_t *finished = &job->call->plan->finished[tile->finished + job->kv_head];
    if (atomic_fetch_add_explicit(finished, 1, memory_order_acq_rel) + 1 < tile->first + tile->parts) return;
    atomic_store_explicit(finished, 0, memory_order_relaxed);
    for (int64_t r = 0; r < rows; r++) job->at.result[(r + 1) * sum_size - 1] = 0;
    for (int64_t s = 0; s < tile->splits; s++)
        for (int64_t r = 0; r < rows; r++, partial += sum_size)
            if (partial[sum_size - 1] != 0) ISA(combine)(job->at.result + r * sum_size, partial, sum_size - 2);
    ISA(finish_tile)(&home);
}
