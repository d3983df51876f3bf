/* What Python calls of layers that keep a state, and the choice of the ISA. */
#include "state.h"

#define CHANNELS 256      /* of a convolution's tile */
#define WORTH_IT 8192     /* numbers: fewer are computed in less time than another thread takes to come */

static void convolution_task(Worker *worker, void *argument) {
    const ConvolutionCall *call = argument;
    ConvolutionTile *compute = convolution_tile_baseline;
#if defined(__x86_64__)
    if (worker->library->isa == ISA_AVX512) compute = convolution_tile_avx512;
    if (worker->library->isa == ISA_AVX2) compute = convolution_tile_avx2;
#endif
    int64_t parts = (call->channels + CHANNELS - 1) / CHANNELS;
    for (int64_t tile; (tile = pool_tile(worker, call->runs->count * parts)) >= 0;) {
        int64_t first = tile % parts * CHANNELS, last = first + CHANNELS;
        compute(call, tile / parts, first, last < call->channels ? last : call->channels);
    }
    pool_barrier(worker);
}

static void scan_task(Worker *worker, void *argument) {
    const ScanCall *call = argument;
    ScanTile *compute = scan_tile_baseline;
#if defined(__x86_64__)
    if (worker->library->isa == ISA_AVX512) compute = scan_tile_avx512;
    if (worker->library->isa == ISA_AVX2) compute = scan_tile_avx2;
#endif
    int64_t parts = (call->channels + CHANNELS - 1) / CHANNELS;
    for (int64_t tile; (tile = pool_tile(worker, call->runs->count * parts)) >= 0;) {
        int64_t first = tile % parts * CHANNELS, last = first + CHANNELS;
        compute(call, tile / parts, first, last < call->channels ? last : call->channels);
    }
    pool_barrier(worker);
}

static void recurrence_task(Worker *worker, void *argument) {
    const RecurrenceCall *call = argument;
    RecurrenceTile *compute = recurrence_tile_baseline;
#if defined(__x86_64__)
    if (worker->library->isa == ISA_AVX512) compute = recurrence_tile_avx512;
    if (worker->library->isa == ISA_AVX2) compute = recurrence_tile_avx2;
#endif
    for (int64_t tile; (tile = pool_tile(worker, call->runs->count * call->value_heads)) >= 0;)
        compute(call, tile / call->value_heads, tile % call->value_heads);
    pool_barrier(worker);
}

static int64_t tokens_of(const Runs *runs) { return runs->count ? runs->ends[runs->count - 1] : 0; }

EXPORT void parley_convolve(const Library *library, const ConvolutionCall *call) {
    pool_run(library, convolution_task, (void *)call, tokens_of(call->runs) * call->channels > WORTH_IT);
}

EXPORT void parley_scan(const Library *library, const ScanCall *call) {
    int64_t numbers = tokens_of(call->runs) * call->channels * call->keys;
    pool_run(library, scan_task, (void *)call, numbers > WORTH_IT);
}

EXPORT void parley_recur(const Library *library, const RecurrenceCall *call) {
    int64_t numbers = tokens_of(call->runs) * call->value_heads * call->key_dim * call->value_dim;
    pool_run(library, recurrence_task, (void *)call, numbers > WORTH_IT);
}
