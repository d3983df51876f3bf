/* Template (see vector.h): paged attention over a step.
 *
 * Splits of the keys (attention_split.inc.h) are combined in order, whoever computed them. Keys that a
 * row doesn't see never enter its arithmetic, so what lies in unwritten parts of a page does no harm. */
#include "attention_tokens.inc.h"

#include "attention_split.inc.h"
#if NATIVE_ISA == 1
#include "attention_floats.inc.h"
#endif

/* A thread's memory for one tile. Rows are queries times the heads that share keys. */
typedef struct {
    float *query;          /* [row][key_dim], scaled */
    uint16_t *rounded;     /* the same in bfloat16, [row][query_numbers]; NULL: not wanted */
    int tiles;             /* AMX multiplies what is rounded */
    float *score;          /* [row][SCORE_STRIDE]: of one split, then its exponentials */
    float *split, *result; /* [row][value_dim + 2]: of one split, and of all so far: sum, maximum, weight */
    float *head;           /* [key_dim]: a key being shaped */
    void *turned;          /* [page of a split]: values that lie in keys (attention_latent.inc.h) */
} ISA(Scratch);

typedef struct {
    const AttentionCall *call;
    const Tile *tile;
    int64_t kv_head, group;
    ISA(Scratch) at;
    const void *keys[SPLIT / PAGE], *values[SPLIT / PAGE]; /* of a split */
    const void *ahead[SPLIT / PAGE]; /* the keys that will be needed next; none: NULL */
} ISA(Job);

INLINE int64_t ISA(position_of)(const Tile *tile, int64_t query) {
    return tile->members ? tile->members[query].position : tile->position + query;
}

INLINE int64_t ISA(row_of)(const Tile *tile, int64_t query) {
    return tile->members ? tile->members[query].row : tile->row + query;
}

INLINE ISA(Seen) ISA(seen)(const ISA(Job) *job, int64_t query, int64_t split) {
    int64_t position = ISA(position_of)(job->tile, query), first = first_seen(&job->call->how, position);
    int64_t limit = job->tile->limits ? job->tile->limits[query] : position + 1;
    int64_t from = first - split * SPLIT, to = limit - split * SPLIT;
    return (ISA(Seen)){from > 0 ? from : 0, to < SPLIT ? to : SPLIT};
}

INLINE const void *ISA(key_page)(const ISA(Job) *job, int64_t page) {
    const Cache *cache = &job->call->cache;
    int64_t block = job->tile->pages[page] * cache->kv_heads + job->kv_head;
    return (const char *)cache->keys + block * key_numbers(cache) * PAGE * number_bytes(cache);
}

INLINE const void *ISA(value_page)(const ISA(Job) *job, int64_t page) {
    const Cache *cache = &job->call->cache;
    if (cache->latent) return (const char *)job->at.turned + page % (SPLIT / PAGE) * turned_bytes(cache);
    int64_t block = job->tile->pages[page] * cache->kv_heads + job->kv_head;
    return (const char *)cache->values + block * cache->value_dim * PAGE * number_bytes(cache);
}

static void ISA(load_queries)(const ISA(Job) *job) {
    const AttentionCall *call = job->call;
    int64_t dim = call->cache.key_dim;
    const float *scales = call->shaping.query_scales;
    float *out = job->at.query;
    for (int64_t i = 0; i < job->tile->queries; i++)
        for (int64_t g = 0; g < job->group; g++, out += dim) {
            int64_t row = ISA(row_of)(job->tile, i);
            int64_t rotation = call->shaping.by_position ? ISA(position_of)(job->tile, i) : row;
            ISA(shape_head)(&call->shaping, &call->query, row, rotation, job->kv_head * job->group + g, dim,
                            call->shaping.query_norm, call->shaping.query_norm_size, out);
            vf scaling = vset1(call->how.scaling);
            if (scales) scaling *= vset1(scales[ISA(position_of)(job->tile, i)]);
            for (int64_t d = 0; d < dim; d += LANES)
                vstore_part(out + d, dim - d, vload_part(out + d, dim - d) * scaling);
#if NATIVE_ISA == 2
            int64_t r = i * job->group + g;
            if (job->at.rounded) round_query_avx512(out, dim, job->at.rounded + r * query_numbers(&call->cache));
#endif
        }
}

/* Scores of the rows from `row` on against some pages, and the values of [from, to) that the weights make of them. */
static void ISA(score)(const ISA(Job) *job, int64_t row, const void *const *keys, const void *const *values,
                       int64_t pages, float *score, int64_t rows) {
    const Cache *cache = &job->call->cache;
#if NATIVE_ISA == 2
    if (job->at.rounded) {
        const uint16_t *query = job->at.rounded + row * query_numbers(cache);
        (job->at.tiles ? score_tiles : score_rounded_avx512)(query, cache, keys, values, pages, score, rows);
        return;
    }
#elif NATIVE_ISA == 1
    if (!is_narrow(cache)) {
        score_floats(job->at.query + row * cache->key_dim, cache->key_dim, keys, values, pages, score, rows);
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

/* The scores of row r of a split made weights, whose sum and maximum go behind its sums, which begin. */
static void ISA(weights)(const ISA(Job) *job, int64_t r, int64_t split, float *score, ISA(Seen) seen, float *sum) {
    int64_t dim = job->call->cache.value_dim;
    memset(sum, 0, (size_t)dim * sizeof(float));
    if (job->call->how.slopes) {
        float slope = job->call->how.slopes[job->kv_head * job->group + r % job->group];
        ISA(add_distances)(score, seen, slope, split * SPLIT - ISA(position_of)(job->tile, r / job->group));
    }
    const float greatest = sum[dim] = ISA(cap_scores)(score, seen, job->call->how.softcap);
#if NATIVE_ISA == 2
    if (job->at.rounded) {
        sum[dim + 1] = rounded_exponentials_avx512(score, seen.from, seen.to, greatest);
        return;
    }
#endif
    sum[dim + 1] = ISA(exponentials)(score, seen, greatest);
}

#include "attention_latent.inc.h"

/* One split of a tile: fills at.split for the queries [first, last) that see some of it. ---------- */
static void ISA(find_pages)(ISA(Job) *job, int64_t split, int64_t from, int64_t pages) {
    for (int64_t p = from; p < pages; p++) {
        job->keys[p] = ISA(key_page)(job, split * (SPLIT / PAGE) + p);
        job->values[p] = ISA(value_page)(job, split * (SPLIT / PAGE) + p);
    }
}

/* Each query's weighted values of the keys that only some see, [from, to) of those. */
static void ISA(weigh_apart)(const ISA(Job) *job, int64_t split, int64_t first, int64_t last, int64_t from,
                             int64_t to) {
    int64_t sum_size = job->call->cache.value_dim + 2;
    for (int64_t i = first; i < last; i++) {
        ISA(Seen) seen = ISA(seen)(job, i, split);
        int64_t r = i * job->group;
        ISA(weigh)(job, job->at.score + r * SCORE_STRIDE, job->values, seen.from > from ? seen.from : from,
                   seen.to < to ? seen.to : to, job->at.split + r * sum_size, job->group, NULL);
    }
}

#if NATIVE_ISA == 2 && defined(HAS_AMX)
#include "attention_tiles.inc.h"
#endif

/* Several heads (of one query) go through the pages side by side, so that these are read as they lie. */
static void ISA(attend_split)(ISA(Job) *jobs, int64_t heads, int64_t split, int64_t first, int64_t last) {
    int64_t group = jobs->group, sum_size = jobs->call->cache.value_dim + 2, rows = (last - first) * group;
    ISA(Seen) top = ISA(seen)(jobs, first, split), bottom = ISA(seen)(jobs, last - 1, split);
    int64_t from = top.from / PAGE, pages = (bottom.to + PAGE - 1) / PAGE; /* of the split, seen by any */
    int64_t step = heads > 1 ? 1 : SPLIT / PAGE;
    for (int64_t h = 0; h < heads; h++) ISA(find_pages)(&jobs[h], split, from, pages);
    for (int64_t p = from, end; p < pages; p = end) {
        end = p + step < pages ? p + step : pages;
        for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
            ISA(score)(job, first * group, job->keys + p, job->values + p, end - p,
                       job->at.score + first * group * SCORE_STRIDE + p * PAGE, rows);
    }
    if (jobs->call->cache.latent) ISA(turn_pages)(jobs, from, pages);
    for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
        for (int64_t r = first * group; r < last * group; r++)
            ISA(weights)(job, r, split, job->at.score + r * SCORE_STRIDE, ISA(seen)(job, r / group, split),
                         job->at.split + r * sum_size);
#if NATIVE_ISA == 2 && defined(HAS_AMX)
    if (jobs->at.tiles) {
        ISA(weigh_tiles)(jobs, heads, split, first, last, from * PAGE, bottom.to, step);
        return;
    }
#endif
    /* What all see together, and for each query what only some see, before it and behind it: no pair is parted. */
    int64_t common = (bottom.from + 1) / 2 * 2, end = top.to / 2 * 2 < common ? common : top.to / 2 * 2;
    for (int64_t h = 0; h < heads; h++) ISA(weigh_apart)(&jobs[h], split, first, last, 0, common);
    for (int64_t t = common, to; t < end; t = to) {
        to = (t / PAGE + step) * PAGE < end ? (t / PAGE + step) * PAGE : end;
        for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
            ISA(weigh)(job, job->at.score + first * group * SCORE_STRIDE, job->values, t, to,
                       job->at.split + first * group * sum_size, rows, job->ahead[0] ? job->ahead : NULL);
    }
    for (int64_t h = 0; h < heads; h++) ISA(weigh_apart)(&jobs[h], split, first, last, end, SPLIT);
}

#include "attention_results.inc.h"

/* The first split that an item computes; those before it may not be seen. */
INLINE int64_t ISA(first_split)(const ISA(Job) *job, int64_t part) {
    int64_t first = job->tile->first + part * job->call->plan->span;
    int64_t seen = first_seen(&job->call->how, job->tile->position) / SPLIT;
    return first > seen ? first : seen;
}

/* The keys that each of some heads will need next: of a split, whose last page stands for those behind it. */
static void ISA(look_ahead)(ISA(Job) *jobs, int64_t heads, const ISA(Job) *next, int64_t split) {
    int64_t last = (next->tile->position + next->tile->queries - 1) / PAGE, page = split * (SPLIT / PAGE);
    for (int64_t h = 0; h < heads; h++) {
        ISA(Job) wanted = {.call = next->call, .tile = next->tile, .kv_head = next->kv_head + h};
        for (int64_t p = 0; p < SPLIT / PAGE; p++)
            jobs[h].ahead[p] = ISA(key_page)(&wanted, page + p < last ? page + p : last);
    }
}

/* A split's results of a head: to where they are combined with the others. */
static void ISA(keep_split)(const ISA(Job) *job, int64_t split, int64_t first, int64_t last, int in_parts) {
    int64_t sum_size = job->call->cache.value_dim + 2;
    if (in_parts) {
        ISA(keep_partial)(job, split, first, last);
        return;
    }
    for (int64_t r = first * job->group; r < last * job->group; r++)
        ISA(combine)(job->at.result + r * sum_size, job->at.split + r * sum_size, sum_size - 2);
}

static void ISA(begin_head)(const ISA(Job) *job, int is_newest) {
    int64_t rows = job->tile->queries * job->group, sum_size = job->call->cache.value_dim + 2;
    if (job->call->plan->decoding && !job->tile->members && is_newest)
        ISA(write_token)(job->call, job->tile, 0, job->kv_head, job->at.head);
    ISA(load_queries)(job);
    for (int64_t r = 0; r < rows; r++) job->at.result[(r + 1) * sum_size - 1] = 0;
}

static void ISA(end_head)(const ISA(Job) *job, int in_parts) {
    if (!in_parts) ISA(finish_tile)(job);
    for (int64_t i = 0; in_parts && i < (job->tile->members ? job->tile->queries : 1); i++)
        ISA(combine_parts)(job, ISA(home_of)(job, i));
}

static void ISA(attend_item)(ISA(Job) *jobs, const Item *item, const ISA(Job) *next, const Item *next_item) {
    const AttentionPlan *plan = jobs->call->plan;
    const Tile *tile = jobs->tile;
    int64_t heads = item->heads, begin = tile->first + item->part * plan->span, end = begin + plan->span;
    int64_t to = end < tile->splits ? end : tile->splits;
    int in_parts = tile->members || tile->partial >= 0;
    for (int64_t h = 0; h < heads; h++) ISA(begin_head)(&jobs[h], to == tile->splits);
    for (int64_t split = begin; split < to; split++) {
        int64_t first = 0, last = tile->queries;
        while (first < last && ISA(seen)(jobs, first, split).to <= 0) first++;
        while (first < last && ISA(seen)(jobs, last - 1, split).from >= SPLIT) last--;
        if (split + 1 < to)
            ISA(look_ahead)(jobs, heads, jobs, split + 1);
        else if (next)
            ISA(look_ahead)(jobs, heads < next_item->heads ? heads : next_item->heads, next,
                            ISA(first_split)(next, next_item->part));
        if (first < last) ISA(attend_split)(jobs, heads, split, first, last);
        for (int64_t h = 0; h < heads; h++) ISA(keep_split)(&jobs[h], split, first, last, in_parts);
    }
    for (int64_t h = 0; h < heads; h++) ISA(end_head)(&jobs[h], in_parts);
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

/* The h-th head of an item, whose rows lie behind those of the heads before. */
static ISA(Job) ISA(job_of)(const AttentionCall *call, const Item *item, int64_t h, const ISA(Scratch) *at) {
    const Cache *cache = &call->cache;
    int64_t group = call->heads / cache->kv_heads, before = h * group;
    const Tile *tile = &call->plan->tiles[item->tile];
    ISA(Job) job = {.call = call, .tile = tile, .kv_head = item->head + h, .group = group, .at = *at};
    job.at.query += before * cache->key_dim;
    if (at->rounded) job.at.rounded += before * query_numbers(cache);
    job.at.score += before * SCORE_STRIDE;
    job.at.split += before * (cache->value_dim + 2);
    job.at.result += before * (cache->value_dim + 2);
    return job;
}

void ISA(attention)(Worker *worker, const AttentionCall *call, int trims) {
    const AttentionPlan *plan = call->plan;
    const Cache *cache = &call->cache;
    int64_t group = call->heads / cache->kv_heads, rows = plan->queries * group;
    float *scratch = plan->scratch + worker->index * plan->scratch_size;
    ISA(Scratch) at = {.score = scratch};
    at.query = at.score + rows * SCORE_STRIDE;
    at.split = at.query + rows * cache->key_dim;
    at.result = at.split + rows * (cache->value_dim + 2);
    at.head = at.result + rows * (cache->value_dim + 2);
    at.turned = scratch + plan->scratch_size - turned_bytes(cache) * (SPLIT / PAGE) / (int64_t)sizeof(float);
#if NATIVE_ISA == 2
    if (is_narrow(cache) && cache->rounded && worker->library->bf16) at.rounded = (uint16_t *)(at.head + cache->key_dim);
    at.tiles = at.rounded && attends_by_tiles(worker->library, cache);
#endif
    if (!plan->decoding) ISA(write_prompts)(worker, call, at.head);
    for (int64_t i; (i = pool_tile(worker, plan->item_count)) >= 0;) {
        int64_t after = i + worker->library->threads; /* what this thread will get next, most likely */
        const Item *item = &plan->items[i], *next = after < plan->item_count ? &plan->items[after] : NULL;
        if (trims && !plan->tiles[item->tile].wanted) continue;
        ISA(Job) jobs[ATTENTION_ROWS], later;
        jobs[0] = ISA(job_of)(call, item, 0, &at);
        for (int64_t h = 1; h < item->heads; h++) jobs[h] = ISA(job_of)(call, item, h, &at);
        if (next) later = ISA(job_of)(call, next, 0, &at);
        ISA(attend_item)(jobs, item, next ? &later : NULL, next);
    }
    pool_barrier(worker);
}
