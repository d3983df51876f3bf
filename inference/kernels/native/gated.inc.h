/* Template (see vector.h): tiles of linears that give gates and ups; and norms between a layer's linears. */

/* out = activation(gate) * up, of one row */
INLINE void ISA(gate)(int64_t activation, const float *gate, const float *up, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(out + i, ISA(activate)(activation, vload(gate + i)) * vload(up + i));
    if (i == n) return;
    vf active = ISA(activate)(activation, vload_part(gate + i, n - i));
    vstore_part(out + i, n - i, active * vload_part(up + i, n - i));
}

/* A panel of gates and the ups that go with it, which the caches hold until they are one panel of inner. */
static void ISA(gated_tile)(const StackCall *call, const ISA(Source) *from, const Input *input, const float *low,
                            int64_t first, int64_t last, int64_t panel) {
    const Stack *stack = call->stack;
    float sides[MOST_TILE_ROWS * 2 * PANEL] __attribute__((aligned(64))); /* [row][gates, ups] */
    int64_t inner = from->linear->n / 2, stride = 2 * PANEL;
    for (int64_t side = 0; side < 2; side++) {
        int64_t at = panel + side * (inner / PANEL); /* y is where row 0 and column 0 would be */
        float *y = sides + side * PANEL - first * stride - at * PANEL;
        linear_tile(call->library, from->linear, input, first, last, at, at + 1, y, stride);
        ISA(raise)(call, from->place, from->linear->n, low, first, last, at, at + 1, y, stride);
    }
    for (int64_t row = first; row < last; row++) {
        const float *gates = sides + (row - first) * stride;
        float *out = stack->inner + row * inner + panel * PANEL;
        ISA(gate)(stack->shape.activation, gates, gates + PANEL, PANEL, out);
    }
}

/* x = norm(x) of each row of n numbers in place, between two linears; without weights it is no phase. */
static void ISA(normalise)(Worker *worker, const StackCall *call, float *x, int64_t n, const float *weights) {
    const Shape *shape = &call->stack->shape;
    if (!weights) return;
    for (int64_t row; (row = pool_tile(worker, call->rows)) >= 0;)
        ISA(norm)(shape->centred, x + row * n, weights, n, shape->eps, x + row * n);
    pool_barrier(worker);
}
