/* Template: the values of a split by AMX (attention_amx.c), of all rows at once. */

INLINE int ISA(has_nan)(const float *sums, int64_t dim) {
    vi found = vizero();
    for (int64_t d = 0; d < dim; d += LANES) {
        vf sum = vload_part(sums + d, dim - d);
        found |= sum != sum;
    }
    return _mm512_test_epi32_mask((__m512i)found, (__m512i)found) != 0;
}

/* What AMX makes of a split's weights: of the positions [from, to), from a page's first on, `step` pages at a time. A
 * row whose sums are no numbers is computed again from what it sees alone: zero times another's infinity is none. */
static void ISA(weigh_tiles)(const ISA(Job) *jobs, int64_t heads, int64_t split, int64_t first, int64_t last,
                             int64_t from, int64_t to, int64_t step) {
    const Cache *cache = &jobs->call->cache;
    int64_t group = jobs->group, rows = (last - first) * group, sum_size = cache->value_dim + 2;
    for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
        for (int64_t r = first * group; r < last * group; r++) {
            ISA(Seen) seen = ISA(seen)(job, r / group, split);
            hide_weights(job->at.score + r * SCORE_STRIDE, seen.from, seen.to, from, (to + PAGE - 1) / PAGE * PAGE);
        }
    for (int64_t t = from, end; t < to; t = end) {
        end = t + step * PAGE < to ? t + step * PAGE : to;
        for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
            weigh_rounded_amx(job->at.score + first * group * SCORE_STRIDE, cache, job->values, t, end,
                              job->at.split + first * group * sum_size, rows, job->ahead[0] ? job->ahead : NULL,
                              t == from);
    }
    for (const ISA(Job) *job = jobs; job < jobs + heads; job++)
        for (int64_t r = first * group; r < last * group; r++) {
            float *sums = job->at.split + r * sum_size;
            if (!ISA(has_nan)(sums, cache->value_dim)) continue;
            ISA(Seen) seen = ISA(seen)(job, r / group, split);
            weigh_rounded_amx(job->at.score + r * SCORE_STRIDE, cache, job->values, seen.from, seen.to, sums, 1, NULL, 1);
        }
}
