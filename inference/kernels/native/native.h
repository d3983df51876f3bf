/* What the C sources of the CPU path share: the library handle, its threads, and linears.
 *
 * The rule of every kernel here: the arithmetic of a row depends on that row alone, never on how
 * many rows there are, on the number of threads, or on who computes a tile. Results are the same
 * bits alone, in any batch, and in any order.
 */
#ifndef PARLEY_NATIVE_H
#define PARLEY_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default"))) /* seen by ctypes */

typedef struct Pool Pool;

/* The compiler can say it, and so can assemblers that come with it (GCC 11's, with RHEL 9's, can't); the system lets it
 * be asked for. */
#if defined(__x86_64__) && defined(__linux__) && __GNUC__ >= 12
#define HAS_AMX
#endif

/* Which copy of each template runs. AMX is AVX-512 but for linears and attention, and NEON the baseline, of ARM's CPUs,
 * but for int8: both are asked for by their own numbers. */
enum Isa { ISA_BASELINE = 0, ISA_AVX2 = 1, ISA_AVX512 = 2, ISA_AMX = 3, ISA_NEON = 4 };

/* A handle: what this CPU has, and the threads. Several may live at once, each with its own threads. */
typedef struct Library {
    Pool *pool;
    int32_t isa;     /* ISA_BASELINE, ISA_AVX2 or ISA_AVX512 */
    int32_t vnni;    /* 1: VPDPBUSD on 512 bits */
    int32_t bf16;    /* 1: VDPBF16PS on 512 bits */
    int32_t amx;     /* 1: tiles of bfloat16 and int8, which this process may use */
    int32_t neon;    /* 1: ISA_NEON was asked for, or is the best */
    int32_t dot;     /* 1: SDOT, with NEON */
    int32_t threads; /* of the pool, the caller's included */
} Library;

/* Raised, here and in native.py, whenever a struct or a function changes that Python uses: an extension that
 * was built before the change must not be called. */
#define INTERFACE 29

EXPORT int32_t parley_interface(void);
EXPORT Library *parley_open(int32_t threads, int32_t isa); /* isa -1: the best; NULL: no such ISA here */
EXPORT void parley_close(Library *library);

/* Threads (pool.c). ---------------------------------------------------------------------------
 *
 * A task is a fixed sequence of phases, the same in every thread. A phase is one loop over tiles:
 *
 *     for (int64_t tile; (tile = pool_tile(worker, count)) >= 0;) { ... }
 *     pool_barrier(worker);
 *
 * `count` must be the same in all threads, and every loop must be followed by its barrier. A barrier
 * waits until all tiles of its phase are done, not until all threads are there: a thread that the
 * system wakes late joins at the phase that is running, having skipped the ones before. So nothing
 * may be kept from phase to phase in a thread's own memory except what follows from the arguments;
 * what one thread alone has to do is a phase of one tile.
 */
typedef struct Worker {
    const Library *library;
    int32_t index;  /* 0 is the thread that called */
    uint32_t phase; /* this and the next ones belong to pool.c */
    uint32_t finished;
    int64_t tile, tile_end; /* near tiles that were taken, and not yet given */
} Worker;

typedef void (*Task)(Worker *worker, void *argument);

Pool *pool_open(const Library *library, int32_t threads);
int32_t pool_threads(const Pool *pool); /* the caller's included; fewer than asked for where the system refuses */
void pool_close(Pool *pool);
/* Run the task in the calling thread and, if `parallel`, in the pool's; return when it has ended in all.
 * Every thread runs with the same MXCSR: round to nearest, denormals are zero. A task may not run another. */
void pool_run(const Library *library, Task task, void *argument, int parallel);
int64_t pool_tile(Worker *worker, int64_t count); /* the next tile of this phase for me, or -1 */
/* The same, but a thread's tiles follow each other as long as there are any of its own range, which is what memory
 * is read fastest in; then it helps others with theirs. */
int64_t pool_near_tile(Worker *worker, int64_t count);
void pool_barrier(Worker *worker);

/* Linears (linear.c). ------------------------------------------------------------------------- */
enum Kind {
    KIND_FLOAT32 = 0, KIND_BFLOAT16 = 1, KIND_FLOAT16 = 2, KIND_INT8 = 3, KIND_CODED = 4, KIND_INT6 = 5, KIND_BITS4 = 6,
    KIND_BITS8 = 7
};

#define PANEL 32 /* outputs that are packed side by side */

/* What codes of bits8 are. Those of E4M3 stand for 2^-8 times the number, with scales that have the rest, and for one in
 * place of NaN: who packs it has scales that are NaN there. */
enum Numbers { NUMBERS_WHOLE = 0, NUMBERS_E4M3 = 1, NUMBERS_E5M2 = 2 };

/* y = x W^T + bias, W (n, k). Packed in panels of 32 outputs, zeros beyond n and k:
 *   float32, float16 [n/32][k][32];  bfloat16 [n/32][k/2][32][2];  int8 [n/32][k/4][32][4]
 *   coded [n/32][k/4][192]: bfloat16 in 12 bits (linear.h), the same values and so the same results; as `lanes` says
 *   int6 [n/32][k/8][192]: int8 of multiples of four (linear.h), only where there is VPDPBUSD
 *   bits4 [n/32][k/8][32]: words of eight codes, the first k's in the lowest bits (linear.h)
 *   bits8 [n/32][k][32]: codes as files have them, of FP8 or whole numbers */
typedef struct Linear {
    int32_t kind;         /* enum Kind */
    int32_t round_inputs; /* bfloat16, coded: x is rounded to bfloat16 too (VDPBF16PS) */
    int64_t n, k;
    const void *packed;   /* 64-byte aligned */
    const float *scales;  /* int8, int6: (n rounded up to 32); bits4, bits8: (n/32, k/group, 32) */
    const int32_t *sums;  /* int8, int6: (n rounded up to 32), 128 times the sum of a row of W; with AVX2
                           of int8 the sum of products of neighbours */
    const float *bias;    /* (n rounded up to 32), or NULL */
    int64_t lanes;        /* coded: of 32 bits, of the vectors that read it */
    const uint8_t *bases; /* coded: (n/32), the least exponent of each panel that has a code, an even one */
    const struct Exception *exceptions; /* coded: weights that have no code; a last one ends each panel's */
    const int64_t *firsts;              /* coded: (n/32), where each panel's begin */
    int64_t group;      /* bits4, bits8: of k, a multiple of 8, CODES_GROUP or fewer */
    int64_t is_whole;   /* bits4: the table is of whole numbers, one after the other */
    const float *table; /* bits4: (16), the levels of codes */
    const float *zeros; /* bits4: as scales, what is added to levels, which are then 0 to 15; or NULL */
    int64_t numbers;    /* bits8: enum Numbers */
} Linear;

static inline int64_t linear_panels(const Linear *linear) { return (linear->n + PANEL - 1) / PANEL; }

/* Inputs of some linears (int8, int6, round_inputs; with AMX all of bfloat16) are prepared first: rows are independent of
 * each other. Linears with the same k, kind and round_inputs can share what was prepared. */
int linear_needs_input(const Library *library, const Linear *linear);
size_t linear_input_bytes(const Library *library, const Linear *linear, int64_t rows); /* 0 if not needed */
/* Prepare rows [from, to) of x (row stride in floats) into `prepared`, 64-byte aligned, laid out for `rows` rows. */
void linear_input(const Library *library, const Linear *linear, const float *x, int64_t x_stride, int64_t rows,
                  int64_t from, int64_t to, void *prepared);

/* Whether a linear's inputs are rounded to bfloat16; and a row of inputs that were prepared for int8 or int6 weights:
 * integers as inputs.inc.h lays them, and what they are multiplied by. */
int linear_rounds_input(const Library *library, const Linear *linear);
const void *linear_integer_row(const Library *library, const Linear *linear, const void *prepared, int64_t rows,
                               int64_t row, float *scale);

/* What the outputs are computed from. `prepared` is used if linear_needs_input, else x. */
typedef struct Input {
    const float *x;      /* (rows, k) */
    int64_t x_stride;    /* floats */
    const void *prepared;
    int64_t rows;        /* that `prepared` is laid out for */
} Input;

/* Write y[row][32 * panel ...], row in [row_from, row_to), panel in [panel_from, panel_to), bias added.
 * `y` points at row 0, column 0. With AMX MOST_TILE_ROWS rows at most. For use inside a task; takes no lock and no
 * memory. */
void linear_tile(const Library *library, const Linear *linear, const Input *input, int64_t row_from, int64_t row_to,
                 int64_t panel_from, int64_t panel_to, float *y, int64_t y_stride);

/* How many of so many rows a tile has, `most` or fewer; with AVX2, which is measured, TILE_ROWS or fewer, all tiles alike,
 * if all threads have tiles then: what weights cost, they cost once for a tile (linear_near.inc.h). With AMX
 * MOST_TILE_ROWS or fewer, and as many as it multiplies at once, with inputs that stay in the second cache while all
 * panels pass, where that is possible. */
#define TILE_ROWS 96
#define MOST_TILE_ROWS 256
int64_t linear_tile_rows(const Library *library, const Linear *linear, int64_t rows, int64_t panels, int64_t most);

/* Whether AMX multiplies it: then all panels pass by some rows' inputs, not all rows by a panel. */
int linear_by_amx(const Library *library, const Linear *linear);

/* Row n of W as it was given to pack, (k); bfloat16 if it is coded. */
void linear_row(const Linear *linear, int64_t n, void *row);

/* All of it inside a task, as one phase or two, barriers included: preparation, then tiles of a panel.
 * `scratch`: linear_input_bytes(library, linear, rows), 64-byte aligned, shared by all threads; or NULL if 0. */
void linear_forward(Worker *worker, const Linear *linear, const float *x, int64_t x_stride, int64_t rows,
                    float *y, int64_t y_stride, void *scratch);

#endif
