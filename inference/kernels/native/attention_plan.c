/* How a step's attention is cut into items for the threads, and the calls of attention by itself.  No cut changes a result:
 * a query's splits are reduced each for itself and combined in order, whoever computes them. */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

#define PARTIALS_MOST ((int64_t)1 << 25) /* numbers, in 128 MiB: no plan of the memory knows of them */
#define ITEMS_OF_A_THREAD 3 /* at least, where an item takes several key heads: so that threads end together */

static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

/* Make room for `wanted` things of `size` bytes at the pointer that `place` points to, whatever its type; what
 * was there is lost. Returns whether there is room. */
static int grow(void *place, int64_t *room, int64_t wanted, int64_t size) {
    if (wanted <= *room) return 1;
    int64_t bytes = (wanted * 5 / 4 * size + 63) / 64 * 64;
    void *old, *fresh = aligned_alloc(64, (size_t)bytes);
    if (!fresh) return 0;
    memcpy(&old, place, sizeof old);
    memcpy(place, &fresh, sizeof fresh);
    free(old);
    *room = bytes / size;
    return 1;
}

static int64_t splits_of(const Tile *tile) { return tile->splits - tile->first; }

static int is_single(const Tile *tile) { return tile->queries == 1 && !tile->members; }

static int64_t heads_of(const AttentionPlan *plan, const Tile *tile) { return is_single(tile) ? plan->together : 1; }

static int longer_first(const void *a, const void *b) {
    const Tile *left = a, *right = b;
    int64_t difference = splits_of(right) * right->queries - splits_of(left) * left->queries;
    if (!difference) difference = left->row != right->row ? left->row - right->row : left->first - right->first;
    return (difference > 0) - (difference < 0);
}

static void fill_tiles(AttentionPlan *plan, const Step *step) {
    int64_t row = 0;
    for (int64_t i = 0; i < step->pieces; i++)
        for (int64_t at = step->starts[i]; at < step->stops[i];) {
            int64_t left = step->stops[i] - at, queries = left < plan->queries ? left : plan->queries;
            const int64_t *limits = step->limits ? step->limits + row : NULL;
            int64_t end = limits ? limits[queries - 1] : at + queries; /* of what any of them sees */
            plan->tiles[plan->tile_count++] = (Tile){
                .piece = i, .row = row, .queries = queries, .position = at, .limits = limits,
                .pages = step->table + step->slots[i] * step->table_stride,
                .first = plan->shared[i].splits, .splits = (end - 1) / SPLIT + 1,
            };
            row += queries;
            at += queries;
        }
}

/* Tell the members of shared tiles where the tiles of their own have come to lie. */
static void lead_home(AttentionPlan *plan) {
    for (int64_t i = 0; i < plan->tile_count; i++)
        if (!plan->tiles[i].members) plan->shared[plan->tiles[i].piece].home = i;
    for (int64_t i = 0; i < plan->member_count; i++) plan->members[i].home = plan->shared[plan->members[i].piece].home;
}

static int64_t longest_tile(const AttentionPlan *plan) {
    int64_t longest = 1;
    for (int64_t i = 0; i < plan->tile_count; i++) longest = at_least(longest, splits_of(&plan->tiles[i]));
    return longest;
}

/* Splits per item: all of a tile's where there are items enough for every thread, else fewer. */
static int64_t choose_span(const AttentionPlan *plan, int64_t kv_heads, int32_t threads) {
    int64_t all = 0;
    for (int64_t i = 0; i < plan->tile_count; i++) all += splits_of(&plan->tiles[i]) * kv_heads;
    if (threads == 1) return longest_tile(plan);
    return at_least(1, all / (4 * threads)); /* no item is more than a quarter of a thread's share */
}

/* Key heads per item of a tile of one query. A page's heads lie behind each other: read in that order they come half
 * as fast again as head by head, where what the hardware fetches ahead is another's. */
static int64_t choose_together(const AttentionPlan *plan, int64_t group, int64_t kv_heads, int32_t threads) {
    int64_t parts = 0;
    for (int64_t i = 0; i < plan->tile_count; i++) parts += is_single(&plan->tiles[i]) ? plan->tiles[i].parts : 0;
    for (int64_t heads = kv_heads; heads > 1; heads--) {
        if (kv_heads % heads || heads * group > ATTENTION_ROWS) continue;
        if (parts * (kv_heads / heads) >= ITEMS_OF_A_THREAD * threads) return heads;
    }
    return 1;
}

static void cut(AttentionPlan *plan, int64_t rows_per_query, int64_t kv_heads, int32_t threads) {
    plan->item_count = plan->partial_rows = plan->counters = 0;
    for (int64_t i = 0; i < plan->tile_count; i++) {
        Tile *tile = &plan->tiles[i];
        tile->parts = (splits_of(tile) + plan->span - 1) / plan->span;
        tile->partial = -1;
        if (tile->members || (tile->parts == 1 && !tile->first)) continue;
        tile->partial = plan->partial_rows;
        tile->finished = plan->counters;
        plan->partial_rows += tile->splits * tile->queries * rows_per_query * kv_heads;
        plan->counters += kv_heads;
    }
    plan->together = choose_together(plan, rows_per_query, kv_heads, threads);
    for (int64_t i = 0; i < plan->tile_count; i++)
        plan->item_count += plan->tiles[i].parts * (kv_heads / heads_of(plan, &plan->tiles[i]));
}

static void list_items(AttentionPlan *plan, int64_t kv_heads) {
    Item *item = plan->items;
    for (int64_t i = 0; i < plan->tile_count; i++) {
        int64_t heads = heads_of(plan, &plan->tiles[i]);
        for (int64_t part = 0; part < plan->tiles[i].parts; part++)
            for (int64_t head = 0; head < kv_heads; head += heads) *item++ = (Item){i, part, head, heads};
    }
}

static int reserve(AttentionPlan *plan, const Cache *cache, int64_t rows, int32_t threads) {
    int64_t counters = plan->finished_room, partials = plan->partial_rows * (cache->value_dim + 2);
    /* a row: its query, its scores, sums of a split and of all with their maxima and weights; beside them, a key */
    int64_t row = cache->key_dim + SCORE_STRIDE + 2 * (cache->value_dim + 2);
    row += query_numbers(cache) / 2; /* rounded */
    plan->scratch_size = (rows * row + cache->key_dim + 31) / 16 * 16;
    plan->scratch_size += (turned_bytes(cache) * (SPLIT / PAGE) / (int64_t)sizeof(float) + 15) / 16 * 16;
    if (!grow(&plan->items, &plan->item_room, plan->item_count, sizeof(Item)) ||
        !grow(&plan->partials, &plan->partial_room, partials, sizeof(float)) ||
        !grow(&plan->scratch, &plan->scratch_room, plan->scratch_size * threads, sizeof(float)) ||
        !grow(&plan->finished, &plan->finished_room, plan->counters, sizeof(int32_t)))
        return -1;
    for (int64_t i = 0; plan->finished_room != counters && i < plan->finished_room; i++)
        atomic_init(&plan->finished[i], 0);
    return 0;
}

static int64_t rows_of_tile(const Library *library, const Cache *cache, int64_t rows) {
    if (attends_by_tiles(library, cache)) return TILED_ROWS;
    return rows >= ENOUGH_ITEMS * MANY_ROWS * library->threads ? MANY_ROWS : ATTENTION_ROWS;
}

int attention_plan(AttentionPlan *plan, const Step *step, const Cache *cache, int64_t heads, const Library *library) {
    int64_t group = heads / cache->kv_heads, most = 0, members = attention_members(step);
    int32_t threads = library->threads;
    plan->queries = at_least(1, rows_of_tile(library, cache, step->tokens * heads) / group);
    plan->decoding = 1;
    for (int64_t i = 0; i < step->pieces; i++) {
        int64_t size = step->stops[i] - step->starts[i];
        plan->decoding &= size == 1;
        most += (size + plan->queries - 1) / plan->queries;
    }
    if (!grow(&plan->tiles, &plan->tile_room, most + members, sizeof(Tile)) ||
        !grow(&plan->members, &plan->member_room, members, sizeof(Member)) ||
        !grow(&plan->candidates, &plan->candidate_room, step->pieces, sizeof(Member)) ||
        !grow(&plan->shared, &plan->shared_room, step->pieces, sizeof(Shared)))
        return -1;
    plan->tile_count = plan->member_count = 0;
    attention_share(plan, step);
    fill_tiles(plan, step);
    qsort(plan->tiles, (size_t)plan->tile_count, sizeof(Tile), longer_first);
    lead_home(plan);
    plan->span = choose_span(plan, cache->kv_heads, threads);
    cut(plan, group, cache->kv_heads, threads);
    while (plan->partial_rows * (cache->value_dim + 2) > PARTIALS_MOST) {
        plan->span *= 2; /* in the end no tile is in parts, unless it has a share in another */
        int64_t before = plan->partial_rows;
        cut(plan, group, cache->kv_heads, threads);
        if (plan->partial_rows == before && plan->span > longest_tile(plan)) break;
    }
    if (reserve(plan, cache, plan->queries * group, threads)) return -1;
    list_items(plan, cache->kv_heads);
    return 0;
}

/* Some are wanted whatever is read of them: of a step of decodes, whose items write their own keys and values, and
 * those with a part in a shared tile, which counts on the rest. */
void attention_want(AttentionPlan *plan, const int64_t *rows, int64_t count) {
    for (int64_t i = 0; i < plan->tile_count; i++) {
        Tile *tile = &plan->tiles[i];
        int64_t at = 0;
        while (at < count && rows[at] < tile->row) at++;
        int read = at < count && rows[at] < tile->row + tile->queries;
        tile->wanted = read || plan->decoding || tile->members || tile->first;
    }
}

void attention_plan_free(AttentionPlan *plan) {
    free(plan->tiles);
    free(plan->items);
    free(plan->partials);
    free((void *)plan->finished);
    free(plan->scratch);
    free(plan->members);
    free(plan->candidates);
    free(plan->shared);
    *plan = (AttentionPlan){0};
}

EXPORT AttentionPlan *parley_attention_plan_open(void) { return calloc(1, sizeof(AttentionPlan)); }

EXPORT void parley_attention_plan_close(AttentionPlan *plan) {
    attention_plan_free(plan);
    free(plan);
}

static void attention_task(Worker *worker, void *call) {
    switch (worker->library->isa) {
#if defined(__x86_64__)
    case ISA_AVX512: attention_avx512(worker, call, 0); return;
    case ISA_AVX2: attention_avx2(worker, call, 0); return;
#endif
    default: attention_baseline(worker, call, 0);
    }
}

/* One layer's attention by itself. Returns 0, or -1 if there is no memory. */
EXPORT int parley_attend(const Library *library, const AttentionCall *call) {
    if (!call->step->tokens) return 0;
    if (attention_plan(call->plan, call->step, &call->cache, call->heads, library)) return -1;
    pool_run(library, attention_task, (void *)call, 1);
    return 0;
}
