/* Which sequences of a step read the same pages, so that one tile can have all their queries attend to them.
 *
 * Only whole splits are shared, and each is a tile of its own: what a row makes of a split is the same bits in any
 * company. Prefixes grow like trees, so groups are sought split by split, among those that shared the one before. */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

#define SPLIT_PAGES (SPLIT / PAGE)

static int64_t whole_splits(int64_t position) { return position / SPLIT; } /* none has the token that is written */

int64_t attention_members(const Step *step) {
    int64_t count = 0;
    for (int64_t i = 0; i < step->pieces; i++)
        if (step->stops[i] - step->starts[i] == 1) count += whole_splits(step->starts[i]);
    return count;
}

static int by_pages(const void *a, const void *b) {
    const Member *left = a, *right = b;
    int order = memcmp(left->pages, right->pages, SPLIT_PAGES * sizeof *left->pages);
    if (order) return order;
    if (left->position != right->position) return left->position < right->position ? -1 : 1;
    return left->piece < right->piece ? -1 : 1;
}

static int same_pages(const Member *a, const Member *b) {
    return !memcmp(a->pages, b->pages, SPLIT_PAGES * sizeof *a->pages);
}

/* Tiles of about equal size: of one query at least, as three make two tiles where these take two. */
static void make_tiles(AttentionPlan *plan, const Step *step, const Member *group, int64_t count, int64_t split) {
    int64_t tiles = (count + plan->queries - 1) / plan->queries;
    Member *members = plan->members + plan->member_count;
    memcpy(members, group, (size_t)count * sizeof *members);
    plan->member_count += count;
    for (int64_t i = 0; i < tiles; i++) {
        const Member *first = members + count * i / tiles;
        plan->tiles[plan->tile_count++] = (Tile){
            .piece = -1, .row = first->row, .queries = count * (i + 1) / tiles - count * i / tiles,
            .position = first->position, .pages = step->table + step->slots[first->piece] * step->table_stride,
            .members = first, .first = split, .splits = split + 1,
        };
    }
}

/* Make the tiles of a split; returns how many candidates are left for the next. */
static int64_t share_split(AttentionPlan *plan, const Step *step, int64_t candidates, int64_t split) {
    Member *all = plan->candidates;
    int64_t count = 0, left = 0;
    for (int64_t i = 0; i < candidates; i++)
        if (whole_splits(all[i].position) > split) all[count++] = all[i];
    qsort(all, (size_t)count, sizeof *all, by_pages);
    for (int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && same_pages(&all[i], &all[end]);) end++;
        if (end - i < 2) continue;
        make_tiles(plan, step, all + i, end - i, split);
        for (int64_t j = i; j < end; j++) {
            plan->shared[all[j].piece].splits = split + 1;
            all[left] = all[j];
            all[left++].pages += SPLIT_PAGES;
        }
    }
    return left;
}

void attention_share(AttentionPlan *plan, const Step *step) {
    int64_t candidates = 0, row = 0;
    for (int64_t i = 0; i < step->pieces; row += step->stops[i] - step->starts[i], i++) {
        plan->shared[i] = (Shared){0};
        if (step->stops[i] - step->starts[i] != 1 || plan->queries < 2) continue;
        const int32_t *pages = step->table + step->slots[i] * step->table_stride;
        plan->candidates[candidates++] = (Member){.piece = i, .row = row, .position = step->starts[i], .pages = pages};
    }
    for (int64_t split = 0; candidates > 1; split++) candidates = share_split(plan, step, candidates, split);
}
