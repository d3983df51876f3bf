/* Template (see vector.h): tiles of linears with something behind them, but gates. */

INLINE vf ISA(activate_by)(int64_t activation, const float *numbers, vf x) {
    return activation == XIELU ? ISA(xielu)(numbers, x) : ISA(activate)(activation, x);
}

/* y = activation(y), of a panel of rows [first, last) in which `left` columns are there; y is where row 0 would be. */
static void ISA(activate_tile)(int64_t activation, const float *numbers, float *y, int64_t stride, int64_t first,
                               int64_t last, int64_t left) {
    const int64_t n = ISA(least)(left, PANEL);
    for (int64_t row = first; row < last; row++) {
        float *out = y + row * stride;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) vstore(out + i, ISA(activate_by)(activation, numbers, vload(out + i)));
        if (i < n) vstore_part(out + i, n - i, ISA(activate_by)(activation, numbers, vload_part(out + i, n - i)));
    }
}

/* onto += linear(input), of a panel: attention's results, which the MLP beside it is added to. */
static void ISA(added_tile)(const StackCall *call, const ISA(Source) *from, const Input *input, const float *low,
                            int64_t first, int64_t last, int64_t panel) {
    float part[MOST_TILE_ROWS * PANEL] __attribute__((aligned(64)));
    const int64_t n = from->linear->n, column = panel * PANEL, width = ISA(least)(n - column, PANEL);
    float *y = part - first * PANEL - column; /* where row 0 and column 0 would be */
    linear_tile(call->library, from->linear, input, first, last, panel, panel + 1, y, PANEL);
    ISA(raise)(call, from->place, n, low, first, last, panel, panel + 1, y, PANEL);
    for (int64_t row = first; row < last; row++) {
        float *out = from->onto + row * n + column;
        const float *add = part + (row - first) * PANEL;
        for (int64_t i = 0; i < width; i += LANES)
            vstore_part(out + i, width - i, vload_part(out + i, width - i) + vload_part(add + i, width - i));
    }
}
