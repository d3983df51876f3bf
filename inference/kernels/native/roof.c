/* What the machine can do at most, by the same threads as the kernels: for benchmarks. */
#include "roof.h"

#define PIECE (1 << 16) /* floats of a tile */
#define PIECES_OF_PEAK 64

typedef struct Roof {
    const float *x;
    int64_t count;
    PeakFunction *peak;
    int64_t rounds, operations;
    float use[64][16]; /* by tile, a line each */
} Roof;

static void read_all(Worker *worker, void *argument) {
    Roof *r = argument;
    ReadFunction *read = read_memory_baseline;
#if defined(__x86_64__)
    if (worker->library->isa == ISA_AVX2) read = read_memory_avx2;
    if (worker->library->isa == ISA_AVX512) read = read_memory_avx512;
#endif
    for (int64_t i; (i = pool_tile(worker, r->count / PIECE)) >= 0;) r->use[i % 64][0] = read(r->x + i * PIECE, PIECE);
    pool_barrier(worker);
}

static void run_peak(Worker *worker, void *argument) {
    Roof *r = argument;
    for (int64_t i; (i = pool_tile(worker, PIECES_OF_PEAK)) >= 0;) {
        r->use[i][0] = 1.0f;
        int64_t operations = r->peak(r->rounds, r->use[i]);
        if (i == 0) r->operations = operations * r->rounds * PIECES_OF_PEAK;
    }
    pool_barrier(worker);
}

/* Read `count` floats once. */
EXPORT void parley_read(const Library *library, const float *x, int64_t count) {
    Roof r = {.x = x, .count = count};
    pool_run(library, read_all, &r, 1);
}

/* Multiply and add from registers; return how many operations that was, 0 where the CPU has no such instruction.
 * `kind`: 0 float, 1 int8 by AMX, VPDPBUSD or AVX2's VPMADDWD, 2 bfloat16 by AMX or VDPBF16PS. */
EXPORT int64_t parley_peak(const Library *library, int32_t kind, int64_t rounds) {
    Roof r = {.peak = peak_float_baseline, .rounds = rounds};
#if defined(__x86_64__)
    if (library->isa == ISA_AVX2) r.peak = peak_float_avx2;
    if (library->isa == ISA_AVX512) r.peak = peak_float_avx512;
    if (kind == 1) r.peak = library->vnni ? peak_vnni_avx512 : library->isa == ISA_AVX2 ? peak_int8_avx2 : NULL;
    if (kind == 2) r.peak = library->bf16 ? peak_bf16_avx512 : NULL;
#if defined(HAS_AMX)
    if (kind && library->amx) r.peak = kind == 1 ? peak_int8_amx : peak_bf16_amx;
#endif
#else
    if (kind) r.peak = NULL;
#endif
    if (r.peak) pool_run(library, run_peak, &r, 1);
    return r.operations;
}
