/* Template (see vector.h): a mixture within a layer, as phases of its task.
 *
 * Which experts a row is given to depends on that row alone; of equal scores the first is chosen. */
#include "mixture.h"

INLINE vf ISA(sigmoid)(vf x) { return vset1(1.0f) / (vset1(1.0f) + vexp(vzero() - x)); }

/* x becomes exp(x) / the sum of these. */
static void ISA(softmax)(float *x, int64_t n) {
    float greatest = x[0];
    for (int64_t i = 1; i < n; i++) greatest = x[i] > greatest ? x[i] : greatest;
    vf sum = vzero();
    for (int64_t i = 0; i < n; i += LANES) {
        vstore_part(x + i, n - i, vexp(vload_part(x + i, n - i) - vset1(greatest)));
        sum += vload_part(x + i, n - i);
    }
    const vf total = vset1(vsum(sum));
    for (int64_t i = 0; i < n; i += LANES) vstore_part(x + i, n - i, vload_part(x + i, n - i) / total);
}

static void ISA(router_scores)(int64_t scoring, float *x, int64_t n) {
    if (scoring == SOFTMAX) {
        ISA(softmax)(x, n);
        return;
    }
    for (int64_t i = 0; i < n; i += LANES) vstore_part(x + i, n - i, ISA(sigmoid)(vload_part(x + i, n - i)));
}

/* Which are the `most` greatest of n numbers or more, none of them NaN; the first of equal ones. */
static void ISA(greatest)(const float *x, int64_t n, int64_t most, int64_t *found) {
    int64_t known = 0;
    for (int64_t i = 0; i < n; i++) {
        if (known == most && !(x[i] > x[found[most - 1]])) continue;
        int64_t at = known < most ? known++ : most - 1;
        for (; at > 0 && x[i] > x[found[at - 1]]; at--) found[at] = found[at - 1];
        found[at] = i;
    }
}

/* Experts of other groups than those that are kept get a score that isn't chosen. */
static void ISA(keep_groups)(const Mixture *mixture, float *scores) {
    const int64_t size = mixture->experts->count / mixture->groups;
    float sums[MOST_GROUPS];
    int64_t kept[MOST_GROUPS], best[MOST_BEST];
    for (int64_t group = 0; group < mixture->groups; group++) {
        ISA(greatest)(scores + group * size, size, mixture->best, best);
        sums[group] = 0;
        for (int64_t i = 0; i < mixture->best; i++) sums[group] += scores[group * size + best[i]];
        if (sums[group] != sums[group]) sums[group] = -__builtin_inff();
    }
    ISA(greatest)(sums, mixture->groups, mixture->kept, kept);
    for (int64_t group = 0; group < mixture->groups; group++) {
        int keeps = 0;
        for (int64_t i = 0; i < mixture->kept; i++) keeps |= kept[i] == group;
        for (int64_t i = 0; !keeps && i < size; i++) scores[group * size + i] = -__builtin_inff();
    }
}

/* One after the other, the best of those that are left, by its share among the ones that are hardly worse (Liu et al.
 * 2024, SparseMixer). */
static void ISA(route_sparsely)(const Mixture *mixture, const float *logits, float *left, int64_t *experts,
                                float *weights) {
    const int64_t count = mixture->experts->count;
    for (int64_t i = 0; i < count; i++) left[i] = logits[i] == logits[i] ? logits[i] : -__builtin_inff();
    for (int64_t chosen = 0; chosen < mixture->chosen; chosen++) {
        int64_t at = 0;
        ISA(greatest)(left, count, 1, &at);
        const float best = left[at];
        float sum = 0;
        for (int64_t i = 0; i < count; i++) {
            const float size = __builtin_fabsf(logits[i]), by = size > best ? size : best;
            if (!((best - left[i]) / by > mixture->margin)) sum += vexp(vset1(left[i] - best))[0];
        }
        experts[chosen] = at;
        weights[chosen] = 1.0f / sum * mixture->scale;
        left[at] = -__builtin_inff();
    }
}

/* A row's experts and their weights, of what the router said. */
static void ISA(route_row)(const Mixture *mixture, float *logits, float *scores, int64_t *experts, float *weights) {
    const int64_t count = mixture->experts->count, chosen = mixture->chosen;
    if (mixture->scoring == SPARSEMIXER) {
        ISA(route_sparsely)(mixture, logits, scores, experts, weights);
        return;
    }
    const int as_they_are = mixture->scoring == SOFTMAX && mixture->groups == 1 && !mixture->correction;
    if (as_they_are) memcpy(scores, logits, (size_t)count * sizeof *scores); /* softmax changes no order, but rounds */
    ISA(router_scores)(mixture->scoring, logits, count);
    for (int64_t i = 0; i < count; i++) {
        if (!as_they_are) scores[i] = mixture->correction ? logits[i] + mixture->correction[i] : logits[i];
        if (scores[i] != scores[i]) scores[i] = -__builtin_inff();
    }
    if (mixture->groups > 1) ISA(keep_groups)(mixture, scores);
    ISA(greatest)(scores, count, chosen, experts);
    float sum = 0;
    for (int64_t i = 0; i < chosen; i++) sum += logits[experts[i]];
    const float by = mixture->normalises ? sum + 1e-20f : 1.0f; /* of sigmoids, all may be 0 */
    for (int64_t i = 0; i < chosen; i++) weights[i] = logits[experts[i]] / by * mixture->scale;
}

/* All rows' experts, and who computes what. */
static void ISA(route)(Worker *worker, const StackCall *call, const Mixture *mixture, const ExpertsCall *experts) {
    const Mixing *mixing = &call->stack->mixing;
    const int64_t size = call->few ? call->rows : ROW_BLOCK, count = mixture->experts->count;
    for (int64_t i; (i = pool_tile(worker, ISA(blocks)(call->rows, size))) >= 0;) {
        for (int64_t row = i * size; row < ISA(least)((i + 1) * size, call->rows); row++) {
            float *logits = mixing->logits + row * mixture->router->n;
            ISA(route_row)(mixture, logits, mixing->scores + row * count, mixing->experts + row * mixture->chosen,
                           mixing->weights + row * mixture->chosen);
            if (mixture->gated) mixing->factors[row] = ISA(sigmoid)(vset1(logits[count]))[0];
        }
        if (call->few) experts_plan(experts);
    }
    pool_barrier(worker);
    if (call->few) return;
    while (pool_tile(worker, 1) >= 0) experts_plan(experts);
    pool_barrier(worker);
}

/* What a mixture gives of what it reads; what is shared is a layer's MLP. */
static void ISA(mix)(Worker *worker, const StackCall *call, const Layer *layer, ISA(Source) from) {
    Stack *stack = call->stack;
    Mixing *mixing = &stack->mixing;
    const Mixture *mixture = layer->mixture;
    const int64_t place = (layer - stack->layers) * LAYER_LINEARS;
    const Routing routing = {call->rows, mixture->chosen, mixing->experts, mixing->weights};
    const ExpertsCall experts = {
        .library = call->library, .experts = mixture->experts, .routing = &routing, .work = &mixing->work,
        .x = stack->normed, .y = stack->given, .shared = layer->down ? mixing->shared : NULL,
        .factors = mixture->gated ? mixing->factors : NULL,
    };
    from.linear = mixture->router;
    from.place = -1;
    from.keeps_normed = 1;
    ISA(linear)(worker, call, &from, mixing->logits, 0);
    ISA(route)(worker, call, mixture, &experts);
    if (layer->down) {
        ISA(Source) shared = {.x = stack->normed, .linear = layer->gate_up, .place = place + GATE_UP,
                              .xielu = layer->xielu};
        ISA(feed_forward)(worker, call, &shared, layer->down->k);
        shared = (ISA(Source)){.x = stack->inner, .linear = layer->down, .place = place + DOWN};
        ISA(linear)(worker, call, &shared, mixing->shared, 0);
    }
    ISA(experts)(worker, &experts);
}
