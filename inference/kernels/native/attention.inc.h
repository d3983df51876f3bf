/* Template (see vector.h): paged attention over a step.
 *
 * Splits of the keys (attention_split.inc.h) are combined in order, whoever computed them. Keys that a
 * row doesn't see never enter its arithmetic, so what lies in unwritten parts of a page does no harm. */
#include "attention_tokens.inc.h"

#include "attention_split.inc.h"

/* A thread's memory for one tile. Rows are queries times the heads that share keys. */
typedef struct {
    float *query;          /* [row][key_dim], scaled */
    uint16_t *rounded;     /* the same in bfloat16, [row][query_numbers]; NULL: not wanted */
    float *score;          /* [row][SCORE_STRIDE]: of one split, then its exponentials */
    float *split, *result; /* [row][value_dim + 2]: of one split, and of all so far: sum, maximum, weight */
    float *head;           /* [key_dim]: a key being shaped */
} ISA(Scratch);

typedef struct {
    const AttentionCall *call;
    const Tile *tile;
    int64_t kv_head, group;
    ISA(Scratch) at;
} ISA(Job);

INLINE int64_t ISA(position_of)(const Tile *tile, int64_t query) {
    return tile->members ? tile->members[query].position : tile->position + query;
}

INLINE int64_t ISA(row_of)(const Tile *tile, int64_t query) {
    return tile->members ? tile->members[query].row : tile->row + query;
}

INLINE ISA(Seen) ISA(seen)(const ISA(Job) *job, int64_t query, int64_t split) {
    int64_t position = ISA(position_of)(job->tile, query), window = job->call->how.window;
    int64_t first = window && position >= window ? position - window + 1 : 0;
    int64_t from = first - split * SPLIT, to = position + 1 - split * SPLIT;
    return (ISA(Seen)){from > 0 ? from : 0, to < SPLIT ? to : SPLIT};
}

INLINE const void *ISA(key_page)(const ISA(Job) *job, int64_t page) {
    const Cache *cache = &job->call->cache;
    int64_t block = job->tile->pages[page] * cache->kv_heads + job->kv_head;
    return (const char *)cache->keys + block * key_numbers(cache) * PAGE * number_bytes(cache);
}

INLINE const void *ISA(value_page)(const ISA(Job) *job, int64_t page) {
    const Cache *cache = &job->call->cache;
    int64_t block = job->tile->pages[page] * cache->kv_heads + job->kv_head;
    return (const char *)cache->values + block * cache->value_dim * PAGE * number_bytes(cache);
}

static void ISA(load_queries)(const ISA(Job) *job) {
    const AttentionCall *call = job->call;
    int64_t dim = call->cache.key_dim;
    vf scaling = vset1(call->how.scaling);
    float *out = job->at.query;
    for (int64_t i = 0; i < job->tile->queries; i++)
        for (int64_t g = 0; g < job->group; g++, out += dim) {
            int64_t row = ISA(row_of)(job->tile, i);
            int64_t rotation = call->shaping.by_position ? ISA(position_of)(job->tile, i) : row;
            ISA(shape_head)(&call->shaping, &call->query, row, rotation, job->kv_head * job->group + g, dim,
                            call->shaping.query_norm, call->shaping.query_norm_size, out);
            for (int64_t d = 0; d < dim; d += LANES)
                vstore_part(out + d, dim - d, vload_part(out + d, dim - d) * scaling);
#if NATIVE_ISA == 2
            int64_t r = i * job->group + g;
            if (job->at.rounded) round_query_avx512(out, dim, job->at.rounded + r * query_numbers(&call->cache));
#endif
        }
}

/* The pages of keys that will be needed next; the last one stands for those behind it. */
static void ISA(look_ahead)(const ISA(Job) *job, int64_t split, const void **keys) {
    int64_t last = (job->tile->position + job->tile->queries - 1) / PAGE, page = split * (SPLIT / PAGE);
    for (int64_t p = 0; p < SPLIT / PAGE; p++) keys[p] = ISA(key_page)(job, page + p < last ? page + p : last);
}

/* Scores of the rows from `row` on against some pages, and the values of [from, to) that the weights make of them. */
static void ISA(score)(const ISA(Job) *job, int64_t row, const void *const *keys, const void *const *values,
                       int64_t pages, float *score, int64_t rows) {
    const Cache *cache = &job->call->cache;
#if NATIVE_ISA == 2
    if (job->at.rounded) {
        const uint16_t *query = job->at.rounded + row * query_numbers(cache);
        score_rounded_avx512(query, cache, keys, values, pages, score, rows);
        return;
    }
#endif
    ISA(score_split)(job->at.query + row * cache->key_dim, cache->key_dim, keys, values, pages, score, rows,
                     is_narrow(cache));
}

static void ISA(weigh)(const ISA(Job) *job, const float *weight, const void *const *values, int64_t from, int64_t to,
                       float *sums, int64_t rows, const void *const *ahead) {
    const Cache *cache = &job->call->cache;
#if NATIVE_ISA == 2
    if (job->at.rounded) {
        weigh_rounded_avx512(weight, cache, values, from, to, sums, rows, ahead);
        return;
    }
#endif
    ISA(weigh_values)(weight, values, from, to, cache->value_dim, sums, rows, ahead, cache->key_dim,
                      is_narrow(cache));
}

/* A row's scores made weights, whose sum and maximum go behind its sums, which begin. */
static void ISA(weights)(const ISA(Job) *job, float *score, ISA(Seen) seen, float *sum) {
    int64_t dim = job->call->cache.value_dim;
    memset(sum, 0, (size_t)dim * sizeof(float));
    sum[dim + 1] = ISA(exponentials)(score, seen, job->call->how.softcap, sum + dim);
#if NATIVE_ISA == 2
    if (job->at.rounded) round_weights_avx512(score, seen.from, seen.to);
#endif
}

/* One split of a tile: fills at.split for the queries [first, last) that see some of it. ---------- */
static void ISA(attend_split)(const ISA(Job) *job, int64_t split, int64_t first, int64_t last,
                              const void *const *ahead) {
    const void *keys[SPLIT / PAGE], *values[SPLIT / PAGE];
    const Cache *cache = &job->call->cache;
    int64_t group = job->group, sum_size = cache->value_dim + 2, page = split * (SPLIT / PAGE);
    ISA(Seen) top = ISA(seen)(job, first, split), bottom = ISA(seen)(job, last - 1, split);
    int64_t from = top.from / PAGE, pages = (bottom.to + PAGE - 1) / PAGE; /* of the split, seen by any */
    for (int64_t p = from; p < pages; p++) {
        keys[p] = ISA(key_page)(job, page + p);
        values[p] = ISA(value_page)(job, page + p);
    }
    float *score = job->at.score + first * group * SCORE_STRIDE, *sums = job->at.split + first * group * sum_size;
    ISA(score)(job, first * group, keys + from, values + from, pages - from, score + from * PAGE,
               (last - first) * group);
    for (int64_t i = first; i < last; i++) {
        ISA(Seen) seen = ISA(seen)(job, i, split);
        for (int64_t r = (i - first) * group; r < (i - first + 1) * group; r++)
            ISA(weights)(job, score + r * SCORE_STRIDE, seen, sums + r * sum_size);
    }
    /* What all see together, and for each query what only some see, before it and behind it: no pair is parted. */
    int64_t common = (bottom.from + 1) / 2 * 2, end = top.to / 2 * 2 < common ? common : top.to / 2 * 2;
    for (int64_t i = first; i < last; i++) {
        ISA(Seen) seen = ISA(seen)(job, i, split);
        int64_t r = (i - first) * group;
        ISA(weigh)(job, score + r * SCORE_STRIDE, values, seen.from, seen.to < common ? seen.to : common,
                   sums + r * sum_size, group, NULL);
    }
    ISA(weigh)(job, score, values, common, end, sums, (last - first) * group, ahead);
    for (int64_t i = first; i < last; i++) {
        int64_t r = (i - first) * group;
        ISA(weigh)(job, score + r * SCORE_STRIDE, values, end, ISA(seen)(job, i, split).to, sums + r * sum_size,
                   group, NULL);
    }
}

/* Combine a row's splits so far (weight 0: none) with the next. ----------------------------------- */
static void ISA(combine)(float *row, const float *next, int64_t dim) {
    if (row[dim + 1] == 0) {
        memcpy(row, next, (size_t)(dim + 2) * sizeof(float));
        return;
    }
    float most = row[dim] < next[dim] ? next[dim] : row[dim];
    float old = vexp(vset1(row[dim] - most))[0], new = vexp(vset1(next[dim] - most))[0];
    vf a = vset1(old), b = vset1(new);
    for (int64_t d = 0; d < dim; d += LANES) {
        vf sum = vfma(vload_part(next + d, dim - d), b, vload_part(row + d, dim - d) * a);
        vstore_part(row + d, dim - d, sum);
    }
    row[dim] = most;
    row[dim + 1] = row[dim + 1] * old + next[dim + 1] * new;
}

static void ISA(finish_row)(const AttentionCall *call, float *row, int64_t head, float *out) {
    int64_t dim = call->cache.value_dim;
    if (call->how.sinks) {
        float sink = call->how.sinks[head], most = row[dim] < sink ? sink : row[dim];
        float scale = vexp(vset1(row[dim] - most))[0];
        row[dim + 1] = row[dim + 1] * scale + vexp(vset1(sink - most))[0];
        for (int64_t d = 0; d < dim; d += LANES)
            vstore_part(row + d, dim - d, vload_part(row + d, dim - d) * vset1(scale));
    }
    vf weight = vset1(row[dim + 1]);
    for (int64_t d = 0; d < dim; d += LANES) vstore_part(out + d, dim - d, vload_part(row + d, dim - d) / weight);
}

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
    const ISA(Job) home = {job->call, tile, job->kv_head, job->group, job->at};
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

/* The splits that an item computes; the first ones may lie before its window. */
INLINE int64_t ISA(first_split)(const ISA(Job) *job, int64_t part) {
    int64_t window = job->call->how.window, first = job->tile->first + part * job->call->plan->span;
    int64_t seen = window && job->tile->position >= window ? (job->tile->position - window + 1) / SPLIT : 0;
    return first > seen ? first : seen;
}

static void ISA(attend_item)(const ISA(Job) *job, int64_t part, const ISA(Job) *next, int64_t next_part) {
    const AttentionPlan *plan = job->call->plan;
    const Tile *tile = job->tile;
    int64_t rows = tile->queries * job->group, sum_size = job->call->cache.value_dim + 2;
    int64_t from = tile->first + part * plan->span, end = from + plan->span;
    int64_t to = end < tile->splits ? end : tile->splits;
    int in_parts = tile->members || tile->partial >= 0;
    const void *ahead[SPLIT / PAGE];
    if (plan->decoding && !tile->members && to == tile->splits)
        ISA(write_token)(job->call, tile, 0, job->kv_head, job->at.head);
    ISA(load_queries)(job);
    for (int64_t r = 0; r < rows; r++) job->at.result[(r + 1) * sum_size - 1] = 0;
    for (int64_t split = from; split < to; split++) {
        int64_t first = 0, last = tile->queries;
        while (first < last && ISA(seen)(job, first, split).to <= 0) first++;
        while (first < last && ISA(seen)(job, last - 1, split).from >= SPLIT) last--;
        if (split + 1 < to)
            ISA(look_ahead)(job, split + 1, ahead);
        else if (next)
            ISA(look_ahead)(next, ISA(first_split)(next, next_part), ahead);
        if (first < last) ISA(attend_split)(job, split, first, last, split + 1 < to || next ? ahead : NULL);
        if (in_parts)
            ISA(keep_partial)(job, split, first, last);
        else
            for (int64_t r = first * job->group; r < last * job->group; r++)
                ISA(combine)(job->at.result + r * sum_size, job->at.split + r * sum_size, sum_size - 2);
    }
    if (!in_parts) ISA(finish_tile)(job);
    for (int64_t i = 0; in_parts && i < (tile->members ? tile->queries : 1); i++)
        ISA(combine_parts)(job, ISA(home_of)(job, i));
}

/* The keys and values of a step with prompts: a phase of its own, as tiles see each other's. */
static void ISA(write_prompts)(Worker *worker, const AttentionCall *call, float *head) {
    const AttentionPlan *plan = call->plan;
    for (int64_t i; (i = pool_tile(worker, plan->tile_count * call->cache.kv_heads)) >= 0;) {
        const Tile *tile = &plan->tiles[i / call->cache.kv_heads];
        for (int64_t t = 0; !tile->members && t < tile->queries; t++)
            ISA(write_token)(call, tile, t, i % call->cache.kv_heads, head);
    }
    pool_barrier(worker);
}

void ISA(attention)(Worker *worker, const AttentionCall *call) {
    const AttentionPlan *plan = call->plan;
    const Cache *cache = &call->cache;
    int64_t group = call->heads / cache->kv_heads, rows = plan->queries * group;
    float *scratch = plan->scratch + worker->index * plan->scratch_size;
    ISA(Scratch) at = {.score = scratch};
    at.query = at.score + rows * SCORE_STRIDE;
    at.split = at.query + rows * cache->key_dim;
    at.result = at.split + rows * (cache->value_dim + 2);
    at.head = at.result + rows * (cache->value_dim + 2);
#if NATIVE_ISA == 2
    if (is_narrow(cache) && cache->rounded && worker->library->bf16) at.rounded = (uint16_t *)(at.head + cache->key_dim);
#endif
    if (!plan->decoding) ISA(write_prompts)(worker, call, at.head);
    int64_t items = plan->item_count * cache->kv_heads;
    for (int64_t i; (i = pool_tile(worker, items)) >= 0;) {
        int64_t after = i + worker->library->threads; /* what this thread will get next, most likely */
        const Item *item = &plan->items[i / cache->kv_heads];
        const Item *next = after < items ? &plan->items[after / cache->kv_heads] : item;
        ISA(Job) job = {call, &plan->tiles[item->tile], i % cache->kv_heads, group, at};
        ISA(Job) later = {call, &plan->tiles[next->tile], after % cache->kv_heads, group, at};
        ISA(attend_item)(&job, item->part, after < items ? &later : NULL, next->part);
    }
    pool_barrier(worker);
}
