/* Template (see vector.h): what adapters add to a linear, in float32, each row by itself. */

/* What the adapter of a row adds to one of all layers' linears; NULL: nothing. */
INLINE const LowRanks *ISA(low_ranks)(const StackCall *call, int64_t linear, int64_t row) {
    if (!call->adapters || linear < 0 || call->adapters[row] < 0) return NULL;
    const Stack *stack = call->stack;
    return &stack->adapters.linears[call->adapters[row] * stack->count * LAYER_LINEARS + linear];
}

/* Numbers at `at`, of which `left` are there. */
INLINE vf ISA(load_side)(const void *side, int64_t at, int64_t left, const int narrow) {
    if (narrow) {
        const uint16_t *from = (const uint16_t *)side + at;
        return left >= LANES ? vload_bf16(from) : vload_bf16_part(from, left);
    }
    return left >= LANES ? vload((const float *)side + at) : vload_part((const float *)side + at, left);
}

INLINE float ISA(dot)(const void *side, int64_t at, const float *x, int64_t n, const int narrow) {
    vf even = vzero(), odd = vzero();
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even = vfma(ISA(load_side)(side, at + i, LANES, narrow), vload(x + i), even);
        odd = vfma(ISA(load_side)(side, at + i + LANES, LANES, narrow), vload(x + i + LANES), odd);
    }
    for (; i < n; i += LANES)
        even = vfma(ISA(load_side)(side, at + i, n - i, narrow), vload_part(x + i, n - i), even);
    return vsum(even + odd);
}

/* low[row] = scale * down x, of all low ranks of the row's adapter, for rows [first, last). */
static void ISA(lower)(const StackCall *call, int64_t linear, const Input *input, int64_t k, int64_t first,
                       int64_t last, float *low) {
    for (int64_t row = first; call->adapters && row < last; row++) {
        const LowRanks *ranks = ISA(low_ranks)(call, linear, row);
        float *out = low + row * call->stack->adapters.rank;
        const float *x = input->x + row * input->x_stride;
        for (int64_t i = 0; ranks && i < ranks->count; i++) {
            const LowRank *each = &ranks->several[i];
            for (int64_t r = 0; r < each->rank; r++)
                *out++ = each->scale * (each->down_narrow ? ISA(dot)(each->down, r * k, x, k, 1)
                                                          : ISA(dot)(each->down, r * k, x, k, 0));
        }
    }
}

/* y += up low, of a panel of which `left` outputs are there. */
INLINE void ISA(raise_panel)(const LowRank *each, const float *low, int64_t panel, int64_t left, float *y,
                             const int narrow) {
    int64_t at = (panel - each->first) * each->rank * PANEL;
    vf sums[PANEL / LANES];
    for (int v = 0; v < PANEL / LANES; v++) sums[v] = vload_part(y + v * LANES, left > v * LANES ? left - v * LANES : 0);
    for (int64_t r = 0; r < each->rank; r++, at += PANEL)
        for (int v = 0; v < PANEL / LANES; v++)
            sums[v] = vfma(vset1(low[r]), ISA(load_side)(each->up, at + v * LANES, LANES, narrow), sums[v]);
    for (int v = 0; v < PANEL / LANES; v++)
        if (left > v * LANES) vstore_part(y + v * LANES, left - v * LANES, sums[v]);
}

/* y[row] += up low[row], for rows [first, last) and panels [from, to) of a linear of n outputs; y is where row 0 and
 * column 0 would be. */
static void ISA(raise)(const StackCall *call, int64_t linear, int64_t n, const float *low, int64_t first, int64_t last,
                       int64_t from, int64_t to, float *y, int64_t stride) {
    for (int64_t row = first; call->adapters && row < last; row++) {
        const LowRanks *ranks = ISA(low_ranks)(call, linear, row);
        const float *given = low + row * call->stack->adapters.rank;
        for (int64_t i = 0; ranks && i < ranks->count; given += ranks->several[i++].rank) {
            const LowRank *each = &ranks->several[i];
            int64_t end = each->first + each->panels;
            for (int64_t panel = each->first > from ? each->first : from; panel < to && panel < end; panel++) {
                int64_t column = panel * PANEL;
                if (each->up_narrow)
                    ISA(raise_panel)(each, given, panel, n - column, y + row * stride + column, 1);
                else
                    ISA(raise_panel)(each, given, panel, n - column, y + row * stride + column, 0);
            }
        }
    }
}
