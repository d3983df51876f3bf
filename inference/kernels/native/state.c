/* What Python calls of layers that keep a state, and the choice of the ISA. */
#include "state.h"

#define CHANNELS 256      /* of a tile */
#define WORTH_IT 8192     /* numbers: fewer are computed in less time than another thread takes to come */

/* The copy of a template's function that the library runs. */
#if defined(__x86_64__)
#define OF_ISA(library, name) \
    ((library)->isa == ISA_AVX512 ? name##_avx512 : (library)->isa == ISA_AVX2 ? name##_avx2 : name##_baseline)
#else
#define OF_ISA(library, name) ((void)(library), name##_baseline)
#endif

/* What is cut by sequences and channels. */
typedef struct {
    ChannelTile *compute;
    const void *call;
    int64_t runs, channels;
} Channels;

static void channel_task(Worker *worker, void *argument) {
    const Channels *work = argument;
    int64_t parts = (work->channels + CHANNELS - 1) / CHANNELS;
    for (int64_t tile; (tile = pool_tile(worker, work->runs * parts)) >= 0;) {
        int64_t first = tile % parts * CHANNELS, last = first + CHANNELS;
        work->compute(work->call, tile / parts, first, last < work->channels ? last : work->channels);
    }
    pool_barrier(worker);
}

static void recurrence_task(Worker *worker, void *argument) {
    const RecurrenceCall *call = argument;
    RecurrenceTile *compute = OF_ISA(worker->library, recurrence_tile);
    for (int64_t tile; (tile = pool_tile(worker, call->runs->count * call->value_heads)) >= 0;)
        compute(call, tile / call->value_heads, tile % call->value_heads);
    pool_barrier(worker);
}

static int64_t tokens_of(const Runs *runs) { return runs->count ? runs->ends[runs->count - 1] : 0; }

EXPORT void parley_convolve(const Library *library, const ConvolutionCall *call) {
    Channels work = {OF_ISA(library, convolution_tile), call, call->runs->count, call->channels};
    pool_run(library, channel_task, &work, tokens_of(call->runs) * call->channels > WORTH_IT);
}

EXPORT void parley_scan(const Library *library, const ScanCall *call) {
    Channels work = {OF_ISA(library, scan_tile), call, call->runs->count, call->channels};
    pool_run(library, channel_task, &work, tokens_of(call->runs) * call->channels * call->keys > WORTH_IT);
}

EXPORT void parley_recur(const Library *library, const RecurrenceCall *call) {
    int64_t numbers = tokens_of(call->runs) * call->value_heads * call->key_dim * call->value_dim;
    pool_run(library, recurrence_task, (void *)call, numbers > WORTH_IT);
}
