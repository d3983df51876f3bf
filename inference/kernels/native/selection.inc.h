/* Template (see vector.h): Mamba between its convolution and its second linear, as phases of a stack's task. */

/* Of each row, apart: what is widened to its steps, and in place what goes into the state and comes out of it. */
static void ISA(part_selected)(Worker *worker, const StackCall *call, const Selection *by) {
    const Stack *stack = call->stack;
    const int64_t rank = by->widens->k, keys = by->scan.keys, width = by->projects->n;
    for (int64_t row; (row = pool_tile(worker, call->rows)) >= 0;) {
        float *selected = stack->selected + row * width, *times = stack->times + row * rank;
        const float *const norms[] = {by->times_norm, by->into_norm, by->by_norm};
        const int64_t sizes[] = {rank, keys, keys};
        memcpy(times, selected, (size_t)rank * sizeof(float));
        for (int part = 0; part < 3; selected += sizes[part++]) {
            float *out = part ? selected : times;
            if (norms[part]) ISA(norm)(0, out, norms[part], sizes[part], by->eps, out);
        }
    }
    pool_barrier(worker);
}

/* From what a layer has convolved, and its gates, to what its second linear reads. */
static void ISA(select)(Worker *worker, const StackCall *call, const Layer *layer) {
    const Stack *stack = call->stack;
    const Selection *by = layer->state->selection;
    ISA(Source) from = {.x = stack->convolved, .linear = by->projects, .place = -1};
    ISA(linear)(worker, call, &from, stack->selected, 0);
    ISA(part_selected)(worker, call, by);
    from = (ISA(Source)){.x = stack->times, .linear = by->widens, .place = -1};
    ISA(linear)(worker, call, &from, stack->steps, 0);
    ScanCall scan = by->scan;
    scan.runs = stack->runs;
    scan.x = stack->convolved;
    scan.steps = stack->steps;
    scan.steps_stride = scan.channels;
    scan.into = stack->selected + by->widens->k;
    scan.by = scan.into + scan.keys;
    scan.into_stride = scan.by_stride = by->projects->n;
    scan.gates = stack->qkv + layer->state->gates;
    scan.gates_stride = layer->qkv->n;
    scan.out = stack->attended;
    const int64_t parts = ISA(blocks)(scan.channels, SCAN_CHANNELS);
    for (int64_t i; (i = pool_tile(worker, scan.runs->count * parts)) >= 0;) {
        const int64_t first = i % parts * SCAN_CHANNELS;
        ISA(scan_tile)(&scan, i / parts, first, ISA(least)(first + SCAN_CHANNELS, scan.channels));
    }
    pool_barrier(worker);
}
