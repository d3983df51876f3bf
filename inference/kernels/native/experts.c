/* What Python calls of a mixture's experts; their memory, and who computes what. */
#include "experts.h"

#include <stdlib.h>
#include <string.h>

#define TILE_AT_MOST 64 /* rows of a tile, see linear_tile_rows */
#define LINE 64

static int64_t round_up(int64_t n) { return (n + LINE - 1) / LINE * LINE; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static void *take(char **next, int64_t bytes) {
    void *taken = *next;
    *next += round_up(bytes);
    return taken;
}

/* Of one pair at most, with the lines that are begun, and with what AMX reads behind whole tiles (linear_input_bytes). */
static int64_t prepared_of_one(const Library *library, const Experts *experts) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < experts->count; i++) {
        bytes = most(bytes, (int64_t)linear_input_bytes(library, experts->up[i], 1));
        bytes = most(bytes, (int64_t)linear_input_bytes(library, experts->down[i], 1));
    }
    return round_up(library->amx ? 2 * bytes : bytes);
}

void experts_include(const Library *library, const Experts *experts, ExpertsSizes *sizes) {
    const int64_t wide = experts->gating.gates && experts->inner % PANEL ? 2 * experts->inner : 0;
    sizes->count = most(sizes->count, experts->count);
    sizes->hidden = most(sizes->hidden, experts->hidden);
    sizes->inner = most(sizes->inner, experts->inner);
    sizes->wide = most(sizes->wide, wide);
    sizes->prepared = most(sizes->prepared, prepared_of_one(library, experts));
}

static int64_t lay_out(const ExpertsSizes *sizes, int64_t pairs, ExpertsWork *work, char *start) {
    const int64_t number = (int64_t)sizeof(float), index = (int64_t)sizeof(int64_t);
    const int64_t busy = pairs < sizes->count ? pairs : sizes->count;
    char *next = start;
    work->busy = take(&next, busy * (int64_t)sizeof(Busy));
    work->up_tiles = take(&next, (busy + 1) * index);
    work->down_tiles = take(&next, (busy + 1) * index);
    work->counts = take(&next, sizes->count * index);
    work->places = take(&next, sizes->count * index);
    work->row = take(&next, pairs * index);
    work->whose = take(&next, pairs * index);
    work->pair = take(&next, pairs * index);
    work->weight = take(&next, pairs * number);
    work->gathered = take(&next, pairs * sizes->hidden * number);
    work->wide = take(&next, pairs * sizes->wide * number);
    work->inner = take(&next, pairs * sizes->inner * number);
    work->found = take(&next, pairs * sizes->hidden * number);
    work->prepared = take(&next, pairs * sizes->prepared);
    return next - start;
}

int experts_reserve(const ExpertsSizes *sizes, int64_t rows, int64_t chosen, ExpertsWork *work) {
    const int64_t bytes = lay_out(sizes, rows * chosen, work, NULL);
    if (bytes > work->room) {
        void *memory = aligned_alloc(LINE, (size_t)bytes);
        if (!memory) return -1;
        free(work->memory);
        work->memory = memory;
        work->room = bytes;
    }
    lay_out(sizes, rows * chosen, work, work->memory);
    return 0;
}

/* Put each row's experts in the order of their numbers, and count; `pair` has experts' numbers until places are known. */
static void sort_rows(const ExpertsCall *call) {
    const Routing *routing = call->routing;
    ExpertsWork *work = call->work;
    const int64_t chosen = routing->chosen, count = call->experts->count;
    memset(work->counts, 0, (size_t)count * sizeof *work->counts);
    for (int64_t row = 0; row < routing->rows; row++) {
        int64_t *numbers = work->pair + row * chosen, known = 0;
        float *weights = work->weight + row * chosen;
        for (int64_t j = 0; j < chosen; j++) {
            const int64_t number = routing->experts[row * chosen + j];
            if (number < 0 || number >= count) continue;
            int64_t at = known++;
            for (; at > 0 && numbers[at - 1] > number; at--) {
                numbers[at] = numbers[at - 1];
                weights[at] = weights[at - 1];
            }
            numbers[at] = number;
            weights[at] = routing->weights[row * chosen + j];
            work->counts[number]++;
        }
        for (int64_t j = known; j < chosen; j++) numbers[j] = -1;
    }
}

/* From experts' numbers to the places of pairs; `counts` become where each expert's next pair is. */
static void place_pairs(const ExpertsCall *call) {
    const Routing *routing = call->routing;
    ExpertsWork *work = call->work;
    for (int64_t b = 0; b < work->busy_count; b++) {
        work->counts[work->busy[b].expert] = work->busy[b].first;
        work->places[work->busy[b].expert] = b;
    }
    for (int64_t i = 0; i < routing->rows * routing->chosen; i++) {
        const int64_t expert = work->pair[i];
        if (expert < 0) continue;
        const int64_t pair = work->pair[i] = work->counts[expert]++;
        work->row[pair] = i / routing->chosen;
        work->whose[pair] = work->places[expert];
    }
}

/* How one expert's pairs are cut into tiles, and where its prepared inputs go. */
static void plan_busy(const ExpertsCall *call, int64_t b, int64_t *up_bytes, int64_t *down_bytes) {
    const Library *library = call->library;
    const Experts *experts = call->experts;
    ExpertsWork *work = call->work;
    Busy *busy = work->busy + b;
    const Linear *up = experts->up[busy->expert], *down = experts->down[busy->expert];
    const int64_t up_panels = experts_up_panels(experts), down_panels = linear_panels(down);
    busy->up_rows = linear_tile_rows(library, up, busy->rows, up_panels, TILE_AT_MOST);
    busy->down_rows = linear_tile_rows(library, down, busy->rows, down_panels, TILE_AT_MOST);
    work->up_tiles[b + 1] = work->up_tiles[b] + (busy->rows + busy->up_rows - 1) / busy->up_rows * up_panels;
    work->down_tiles[b + 1] = work->down_tiles[b] + (busy->rows + busy->down_rows - 1) / busy->down_rows * down_panels;
    busy->up_input = *up_bytes;
    busy->down_input = *down_bytes;
    *up_bytes += round_up((int64_t)linear_input_bytes(library, up, busy->rows));
    *down_bytes += round_up((int64_t)linear_input_bytes(library, down, busy->rows));
    work->gathers |= busy->rows > 1 || linear_needs_input(library, up);
    work->prepares |= linear_needs_input(library, down);
}

void experts_plan(const ExpertsCall *call) {
    ExpertsWork *work = call->work;
    sort_rows(call);
    work->pairs = work->busy_count = work->gathers = work->prepares = 0;
    work->up_tiles[0] = work->down_tiles[0] = 0;
    int64_t up_bytes = 0, down_bytes = 0;
    for (int64_t expert = 0; expert < call->experts->count; expert++) {
        const int64_t rows = work->counts[expert];
        if (!rows) continue;
        work->busy[work->busy_count] = (Busy){.expert = expert, .first = work->pairs, .rows = rows};
        plan_busy(call, work->busy_count++, &up_bytes, &down_bytes);
        work->pairs += rows;
    }
    place_pairs(call);
}

/* --- what Python calls ------------------------------------------------------------------------ */

static void task(Worker *worker, void *argument) {
    switch (worker->library->isa) {
#if defined(__x86_64__)
    case ISA_AVX512: experts_avx512(worker, argument); return;
    case ISA_AVX2: experts_avx2(worker, argument); return;
#endif
    default: experts_baseline(worker, argument);
    }
}

EXPORT ExpertsWork *parley_experts_open(void) { return calloc(1, sizeof(ExpertsWork)); }

EXPORT void parley_experts_close(ExpertsWork *work) {
    free(work->memory);
    free(work);
}

/* x (rows, hidden) -> y; returns 0, or -1 if there is no memory. One call at a time has this memory. */
EXPORT int parley_experts(const Library *library, const Experts *experts, const Routing *routing, ExpertsWork *work,
                          const float *x, float *y) {
    ExpertsCall call = {.library = library, .experts = experts, .routing = routing, .work = work, .x = x, .y = y};
    ExpertsSizes sizes = {0};
    if (!routing->rows) return 0;
    experts_include(library, experts, &sizes);
    if (experts_reserve(&sizes, routing->rows, routing->chosen, work)) return -1;
    experts_plan(&call);
    pool_run(library, task, &call, 1);
    return 0;
}
