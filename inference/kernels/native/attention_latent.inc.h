/* Template: the values of latent attention, which are the first numbers of the keys.
 *
 * A cache that has none of its own keeps keys as scores want them, number by number; sums want them position by position.
 * So of each split they are turned into a thread's own memory, once for all rows, and what reads values finds them there. */

/* In step `s` of a transposition, one of two vectors: blocks of s lanes change places across the diagonal. */
INLINE vi ISA(exchange)(vi a, vi b, const int s, const int upper) {
    vi lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = upper ? (i & s ? LANES + i : i + s) : (i & s ? LANES + i - s : i);
    return __builtin_shuffle(a, b, lanes);
}

/* LANES rows of as many words, rows becoming columns. */
INLINE void ISA(transpose)(vi rows[LANES]) {
#pragma GCC unroll 4
    for (int s = 1; s < LANES; s *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            const vi a = rows[i], b = rows[i + s];
            rows[i] = ISA(exchange)(a, b, s, 0);
            rows[i + s] = ISA(exchange)(a, b, s, 1);
        }
}

/* Of float32: [number][PAGE] becomes [PAGE][dim]. */
static void ISA(turn_floats)(const float *key, int64_t dim, float *value) {
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES)
        for (int64_t t = 0; t < PAGE; t += LANES) {
            vi rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = viload(key + (d + i) * PAGE + t);
            ISA(transpose)(rows);
            UNROLL for (int i = 0; i < LANES; i++) vistore(value + (t + i) * dim + d, rows[i]);
        }
    for (; d < dim; d++)
        for (int64_t t = 0; t < PAGE; t++) value[t * dim + d] = key[d * PAGE + t];
}

/* Words of two positions, of two numbers each: of the even numbers (`upper` 0) or the odd ones, both positions. */
INLINE vi ISA(pair_up)(vi first, vi second, const int upper) {
    const vi low = viset1(0xffff);
    return upper ? ((first >> 16) & low) | (second & ~low) : (first & low) | second << 16;
}

/* Even and odd words in turn, the lower half of the lanes or the upper. */
INLINE vi ISA(interleave)(vi even, vi odd, const int upper) {
    vi lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i / 2 + (upper ? LANES / 2 : 0) + (i & 1 ? LANES : 0);
    return __builtin_shuffle(even, odd, lanes);
}

/* Of bfloat16: [number / 2][PAGE][2] becomes [PAGE / 2][dim][2]. */
static void ISA(turn_pairs)(const uint16_t *key, int64_t dim, uint16_t *value) {
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES)
        for (int64_t t = 0; t < PAGE; t += LANES) {
            vi rows[LANES]; /* words of two numbers */
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = viload(key + ((d / 2 + i) * PAGE + t) * 2);
            ISA(transpose)(rows);
            UNROLL for (int i = 0; i < LANES; i += 2) {
                const vi even = ISA(pair_up)(rows[i], rows[i + 1], 0), odd = ISA(pair_up)(rows[i], rows[i + 1], 1);
                uint16_t *to = value + ((t + i) / 2 * dim + d) * 2;
                vistore(to, ISA(interleave)(even, odd, 0));
                vistore(to + 2 * LANES, ISA(interleave)(even, odd, 1));
            }
        }
    for (; d < dim; d++)
        for (int64_t t = 0; t < PAGE; t++)
            value[(t / 2 * dim + d) * 2 + t % 2] = key[(d / 2 * PAGE + t) * 2 + d % 2];
}

/* Have the values of some pages of a split where job->values says. */
static void ISA(turn_pages)(const ISA(Job) *job, int64_t from, int64_t pages) {
    const Cache *cache = &job->call->cache;
    for (int64_t p = from; p < pages; p++) {
        void *values = (char *)job->at.turned + p * turned_bytes(cache);
        if (is_narrow(cache))
            ISA(turn_pairs)(job->keys[p], cache->value_dim, values);
        else
            ISA(turn_floats)(job->keys[p], cache->value_dim, values);
    }
}
