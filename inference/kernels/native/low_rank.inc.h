/* Template (see vector.h): what adapters add to a linear, in float32, each row by itself. */

/* What the adapter of a row adds to one of all layers' linears; NULL: nothing. */
INLINE const LowRanks *ISA(low_ranks)(const StackCall *call, int64_t linear, int64_t row) {
    if (!call->adapters || call->adapters[row] < 0) return NULL;
    const Stack *stack = call->stack;
    return &stack->adapters.linears[call->adapters[row] * stack->count * LAYER_LINEARS + linear];
}

INLINE float ISA(dot)(const float *a, const float *b, int64_t n) {
    vf even = vzero(), odd = vzero();
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even = vfma(vload(a + i), vload(b + i), even);
        odd = vfma(vload(a + i + LANES), vload(b + i + LANES), odd);
    }
    for (; i < n; i += LANES) even = vfma(vload_part(a + i, n - i), vload_part(b + i, n - i), even);
    return vsum(even + odd);
}

/* low[row] = down x, of all low ranks of the row's adapter, for rows [first, last). */
static void ISA(lower)(const StackCall *call, int64_t linear, const Input *input, int64_t k, int64_t first,
                       int64_t last, float *low) {
    for (int64_t row = first; call->adapters && row < last; row++) {
        const LowRanks *ranks = ISA(low_ranks)(call, linear, row);
        float *out = low + row * call->stack->adapters.rank;
        for (int64_t i = 0; ranks && i < ranks->count; i++) {
            const LowRank *each = &ranks->several[i];
            for (int64_t r = 0; r < each->rank; r++)
                *out++ = ISA(dot)(each->down + r * k, input->x + row * input->x_stride, k);
        }
    }
}

/* y[row][column] += (up low[row])[column], for rows [first, last) and columns [from, to); y is where row 0 and
 * column 0 would be. */
static void ISA(raise)(const StackCall *call, int64_t linear, const float *low, int64_t first, int64_t last,
                       int64_t from, int64_t to, float *y, int64_t stride) {
    for (int64_t row = first; call->adapters && row < last; row++) {
        const LowRanks *ranks = ISA(low_ranks)(call, linear, row);
        const float *given = low + row * call->stack->adapters.rank;
        for (int64_t i = 0; ranks && i < ranks->count; given += ranks->several[i++].rank) {
            const LowRank *each = &ranks->several[i];
            int64_t start = each->first > from ? each->first : from, end = each->first + each->count;
            end = end < to ? end : to;
            for (int64_t column = start; column < end; column += LANES) {
                int64_t left = end - column;
                const float *up = each->up + column - each->first;
                vf sum = vload_part(y + row * stride + column, left);
                for (int64_t r = 0; r < each->rank; r++)
                    sum = vfma(vset1(given[r]), vload_part(up + r * each->count, left), sum);
                vstore_part(y + row * stride + column, left, sum);
            }
        }
    }
}
