/* Linears: packing, inputs, and how the work is cut into tiles. */
#include "linear.h"

#include <string.h>

#define LINE 64
#define AMX_INT8_ROWS 5  /* at least */
#define AMX_TILE_ROWS 32 /* that are multiplied at once */
#define AMX_INPUT_BYTES (5 << 18) /* of a chunk of rows, which each panel reads: what stays in a second cache of 2 MB */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int kind_of(const Library *library, const Linear *linear) {
    if (linear->kind == KIND_INT8 && library->vnni) return KIND_VNNI;
    if (linear->kind == KIND_INT8 && library->dot) return KIND_DOT;
    if (library->amx && !linear->round_inputs && linear->kind == KIND_BFLOAT16) return KIND_SPLIT;
    if (library->amx && !linear->round_inputs && linear->kind == KIND_CODED) return KIND_CODED_SPLIT;
    if (!linear->round_inputs || !library->bf16) return linear->kind;
    if (linear->kind == KIND_BFLOAT16) return KIND_ROUNDED;
    if (linear->kind == KIND_CODED) return KIND_CODED_ROUNDED;
    return linear->kind;
}

static int is_integer(int kind) { return kind == KIND_INT8 || kind == KIND_INT6; }

/* Whose inputs are bytes. */
static int takes_bytes(int kind) { return kind == KIND_VNNI || kind == KIND_INT6 || kind == KIND_DOT; }

/* By enum Kind: bytes of an element as rows have it, how many of one output lie together, and a panel's bytes of one k. */
static int64_t bytes_of(int kind) { return kind == KIND_FLOAT32 ? 4 : is_integer(kind) || kind == KIND_BITS8 ? 1 : 2; }

static int64_t group_of(int kind) {
    if (kind == KIND_INT6) return EIGHT;
    if (kind == KIND_BITS4) return BITS4_CODES;
    return kind == KIND_INT8 || kind == KIND_CODED ? 4 : kind == KIND_BFLOAT16 ? 2 : 1;
}

static int64_t panel_step(int kind) {
    if (kind == KIND_INT6) return EIGHT_BYTES / EIGHT;
    if (kind == KIND_BITS4) return BITS4_BYTES / BITS4_CODES;
    return kind == KIND_CODED ? QUAD_BYTES / QUAD : PANEL * bytes_of(kind);
}

static int64_t panel_bytes(const Linear *linear) {
    return round_up(linear->k, group_of(linear->kind)) * panel_step(linear->kind);
}

static int is_rounded(int kind) { return kind == KIND_ROUNDED || kind == KIND_CODED_ROUNDED; }

/* --- inputs --------------------------------------------------------------------------------- */

static int64_t input_bytes(int kind) {
    if (takes_bytes(kind)) return 1;
    if (is_split(kind)) return 6;
    return kind == KIND_INT8 || is_rounded(kind) ? 2 : 4;
}

/* Of a prepared row: an odd number of lines, or the rows of a tile or block would share few of the caches' sets. */
static int64_t input_stride(int kind, int64_t k) {
    int64_t bytes = round_up(round_up(k, 64) * input_bytes(kind), LINE);
    return bytes | LINE;
}

static int64_t scales_bytes(int kind, int64_t rows) {
    return is_rounded(kind) || is_split(kind) ? 0 : round_up(rows * (int64_t)sizeof(float), LINE);
}

/* Of rows in KIND_INT8, behind their scales: what they subtract (linear_int8.inc.h). */
static int64_t pairs_bytes(int kind, int64_t rows) { return kind == KIND_INT8 ? scales_bytes(kind, rows) : 0; }

static int64_t beside_bytes(int kind, int64_t rows) { return scales_bytes(kind, rows) + pairs_bytes(kind, rows); }

int linear_needs_input(const Library *library, const Linear *linear) {
    int kind = kind_of(library, linear);
    return is_integer(kind) || takes_bytes(kind) || is_rounded(kind) || is_split(kind);
}

size_t linear_input_bytes(const Library *library, const Linear *linear, int64_t rows) {
    int kind = kind_of(library, linear);
    if (!linear_needs_input(library, linear)) return 0;
    /* Tiles behind whole ones are read whole, and what lies there is dropped */
    int64_t beyond = library->amx && rows > AMX_TILE_ROWS ? AMX_TILE_ROWS : 0;
    return (size_t)(beside_bytes(kind, rows) + (rows + beyond) * input_stride(kind, linear->k));
}

static QuantizeFunction *quantizer(const Library *library) {
#if defined(__x86_64__)
    if (library->vnni) return quantize_unsigned_avx512;
    if (library->isa == ISA_AVX512) return quantize_signed_avx512;
    if (library->isa == ISA_AVX2) return quantize_signed_avx2;
#elif defined(__aarch64__)
    if (library->dot) return quantize_bytes;
#endif
    (void)library;
    return quantize_signed_baseline;
}

#if defined(__x86_64__)
static RoundFunction *prepare_row(int kind) {
#if defined(HAS_AMX)
    if (is_split(kind)) return split_row_amx;
#endif
    (void)kind;
    return round_row_avx512;
}
#endif

void linear_input(const Library *library, const Linear *linear, const float *x, int64_t x_stride, int64_t rows,
                  int64_t from, int64_t to, void *prepared) {
    int kind = kind_of(library, linear);
    int64_t stride = input_stride(kind, linear->k);
    char *first = (char *)prepared + beside_bytes(kind, rows);
    int32_t *pairs = kind == KIND_INT8 ? (int32_t *)((char *)prepared + scales_bytes(kind, rows)) : NULL;
    for (int64_t row = from; row < to; row++) {
#if defined(__x86_64__)
        if (is_rounded(kind) || is_split(kind)) {
            prepare_row(kind)(x + row * x_stride, linear->k, (uint16_t *)(first + row * stride));
            continue;
        }
#endif
        ((float *)prepared)[row] =
            quantizer(library)(x + row * x_stride, linear->k, first + row * stride, pairs ? pairs + row : NULL);
    }
}

int linear_rounds_input(const Library *library, const Linear *linear) { return is_rounded(kind_of(library, linear)); }

const void *linear_integer_row(const Library *library, const Linear *linear, const void *prepared, int64_t rows,
                               int64_t row, float *scale) {
    int kind = kind_of(library, linear);
    *scale = ((const float *)prepared)[row];
    return (const char *)prepared + beside_bytes(kind, rows) + row * input_stride(kind, linear->k);
}

/* --- tiles ---------------------------------------------------------------------------------- */

#if defined(HAS_AMX)
/* NULL: it isn't AMX that multiplies. Of few rows in int8 the same sums come sooner otherwise. */
static TileFunction *amx_function(int kind, int64_t rows) {
    static TileFunction *const functions[] = {
        [KIND_ROUNDED] = linear_rounded_amx,
        [KIND_CODED_ROUNDED] = linear_coded_rounded_amx,
        [KIND_SPLIT] = linear_split_amx,
        [KIND_CODED_SPLIT] = linear_coded_split_amx,
        [KIND_VNNI] = linear_int8_amx,
        [KIND_INT6] = linear_int6_amx,
    };
    return (kind == KIND_VNNI || kind == KIND_INT6) && rows < AMX_INT8_ROWS ? NULL : functions[kind];
}
#endif

static TileFunction *tile_function(const Library *library, int kind, int64_t rows) {
    static TileFunction *const baseline[] = {linear_float32_baseline, linear_bfloat16_baseline, linear_float16_baseline,
                                             linear_int8_baseline, linear_coded_baseline, NULL, linear_bits4_baseline,
                                             linear_bits8_baseline};
#if defined(__x86_64__)
    static TileFunction *const avx2[] = {linear_float32_avx2, linear_bfloat16_avx2, linear_float16_avx2,
                                         linear_int8_avx2, linear_coded_avx2, NULL, linear_bits4_avx2,
                                         linear_bits8_avx2};
    static TileFunction *const avx512[] = {linear_float32_avx512, linear_bfloat16_avx512, linear_float16_avx512,
                                           linear_int8_avx512,    linear_coded_avx512,    linear_int6_avx512,
                                           linear_bits4_avx512,   linear_bits8_avx512,    linear_rounded_avx512,
                                           linear_vnni_avx512,    linear_coded_rounded_avx512};
#if defined(HAS_AMX)
    TileFunction *function = library->amx ? amx_function(kind, rows) : NULL;
    if (function) return function;
#endif
    if (library->isa == ISA_AVX512) return avx512[kind];
    if (library->isa == ISA_AVX2) return avx2[kind];
#elif defined(__aarch64__)
    if (kind == KIND_DOT) return linear_int8_dot;
#endif
    (void)library;
    (void)rows;
    return baseline[kind];
}

void linear_tile(const Library *library, const Linear *linear, const Input *input, int64_t row_from, int64_t row_to,
                 int64_t panel_from, int64_t panel_to, float *y, int64_t y_stride) {
    int kind = kind_of(library, linear);
    int is_prepared = linear_needs_input(library, linear);
    int64_t offset = beside_bytes(kind, input->rows);
    Tile tile = {
        .linear = linear,
        .x = is_prepared ? (const char *)input->prepared + offset : (const char *)input->x,
        .x_stride = is_prepared ? input_stride(kind, linear->k) : input->x_stride * (int64_t)sizeof(float),
        .x_bytes = input_bytes(kind),
        .x_scales = is_prepared && offset ? input->prepared : NULL,
        .x_pairs = kind == KIND_INT8 ? (const int32_t *)((const char *)input->prepared + scales_bytes(kind, input->rows))
                                     : NULL,
        .w = linear->packed,
        .panel_bytes = panel_bytes(linear),
        .panel_step = panel_step(linear->kind),
        .row_from = row_from,
        .row_to = row_to,
        .panel_from = panel_from,
        .panel_to = panel_to,
        .y = y,
        .y_stride = y_stride,
    };
    tile_function(library, kind, row_to - row_from)(&tile);
}

int linear_by_amx(const Library *library, const Linear *linear) {
    int kind = kind_of(library, linear);
    return library->amx && (is_integer(kind) || kind == KIND_VNNI || is_rounded(kind) || is_split(kind));
}

/* How many rows' inputs stay near while all panels pass; of very long ones there are more, as weights would be read, or
 * decoded, too often for few. Measured with k of 576 to 11008. */
static int64_t amx_most_rows(int kind, int64_t k) {
    const int64_t fit = AMX_INPUT_BYTES / input_stride(kind, k) / AMX_TILE_ROWS * AMX_TILE_ROWS;
    const int64_t enough = is_split(kind) ? AMX_TILE_ROWS : 3 * AMX_TILE_ROWS;
    return fit < enough ? MOST_TILE_ROWS : smaller(fit, MOST_TILE_ROWS);
}

/* Whole tiles of AMX, fewer of them while threads have too few to do. */
static int64_t amx_tile_rows(const Library *library, const Linear *linear, int64_t rows, int64_t panels) {
    int64_t most = amx_most_rows(kind_of(library, linear), linear->k);
    int64_t blocks = (rows + most - 1) / most;
    while (blocks * AMX_TILE_ROWS < rows && blocks * panels < 2 * library->threads) blocks++;
    int64_t even = (rows + blocks - 1) / blocks;
    return (even + AMX_TILE_ROWS - 1) / AMX_TILE_ROWS * AMX_TILE_ROWS;
}

int64_t linear_tile_rows(const Library *library, const Linear *linear, int64_t rows, int64_t panels, int64_t most) {
    if (linear_by_amx(library, linear))
        return rows <= AMX_TILE_ROWS ? rows : amx_tile_rows(library, linear, rows, panels);
    int64_t blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
    if (library->isa != ISA_AVX2 || blocks * panels < 2 * library->threads) return smaller(rows, most);
    return (rows + blocks - 1) / blocks;
}

/* Where one of several chunks of rows begins: all alike, or with AMX as many as it multiplies at once. */
static int64_t chunk_row(const Library *library, const Linear *linear, int64_t rows, int64_t chunk, int64_t chunks,
                         int64_t most) {
    return linear_by_amx(library, linear) ? smaller(rows, chunk * most) : rows * chunk / chunks;
}

#define FORWARD_ROWS 48 /* without AMX: their inputs stay in the caches while panels pass */

void linear_forward(Worker *worker, const Linear *linear, const float *x, int64_t x_stride, int64_t rows,
                    float *y, int64_t y_stride, void *scratch) {
    const Library *library = worker->library;
    if (linear_needs_input(library, linear)) {
        for (int64_t row; (row = pool_tile(worker, rows)) >= 0;)
            linear_input(library, linear, x, x_stride, rows, row, row + 1, scratch);
        pool_barrier(worker);
    }
    Input input = {.x = x, .x_stride = x_stride, .prepared = scratch, .rows = rows};
    int64_t panels = linear_panels(linear), most = linear_tile_rows(library, linear, rows, panels, FORWARD_ROWS);
    int64_t chunks = rows ? (rows + most - 1) / most : 0;
    for (int64_t tile; (tile = pool_near_tile(worker, chunks * panels)) >= 0;) {
        int64_t chunk = tile / panels, panel = tile % panels;
        int64_t first = chunk_row(library, linear, rows, chunk, chunks, most);
        int64_t last = chunk_row(library, linear, rows, chunk + 1, chunks, most);
        linear_tile(library, linear, &input, first, last, panel, panel + 1, y, y_stride);
    }
    pool_barrier(worker);
}

/* --- what Python calls ------------------------------------------------------------------------ */

#define SMALL_WORK (1 << 16) /* products: less than waking a thread costs */

typedef struct Forward {
    const Linear *linear;
    const float *x;
    int64_t x_stride, rows;
    float *y;
    int64_t y_stride;
    void *scratch;
} Forward;

static void forward(Worker *worker, void *argument) {
    Forward *f = argument;
    linear_forward(worker, f->linear, f->x, f->x_stride, f->rows, f->y, f->y_stride, f->scratch);
}

EXPORT int64_t parley_linear_scratch(const Library *library, const Linear *linear, int64_t rows) {
    return (int64_t)linear_input_bytes(library, linear, rows);
}

EXPORT void parley_linear(const Library *library, const Linear *linear, const float *x, int64_t x_stride, int64_t rows,
                          float *y, int64_t y_stride, void *scratch) {
    Forward f = {linear, x, x_stride, rows, y, y_stride, scratch};
    pool_run(library, forward, &f, linear->n * linear->k * rows > SMALL_WORK);
}

EXPORT int64_t parley_packed_bytes(const Linear *linear) { return linear_panels(linear) * panel_bytes(linear); }

/* Copy row `n` of W between its place in the panels and `row`. */
static void copy_row(const Packing *p, int64_t n, char *row, int is_packing) {
    int64_t bytes = bytes_of(p->linear->kind), together = group_of(p->linear->kind) * bytes;
    char *column = p->packed + n / PANEL * panel_bytes(p->linear) + n % PANEL * together;
    for (int64_t left = p->linear->k * bytes; left > 0; left -= together, row += together, column += PANEL * together) {
        size_t size = (size_t)smaller(left, together);
        memcpy(is_packing ? column : row, is_packing ? row : column, size);
    }
}

void linear_row(const Linear *linear, int64_t n, void *row) {
    Packing p = {.linear = linear, .packed = (char *)linear->packed};
    if (linear->kind == KIND_CODED)
        coded_unpack_row(linear, n, row);
    else if (linear->kind == KIND_INT6)
        int6_unpack_row(linear, n, row);
    else
        copy_row(&p, n, row, 0);
}

static void pack(Worker *worker, void *argument) {
    Packing *p = argument;
    int64_t row_bytes = p->linear->k * bytes_of(p->linear->kind), size = panel_bytes(p->linear);
    for (int64_t panel; (panel = pool_tile(worker, linear_panels(p->linear))) >= 0;) {
        memset(p->packed + panel * size, 0, (size_t)size);
        if (p->linear->kind == KIND_CODED) {
            coded_pack_panel(p, panel);
            continue;
        }
        if (p->linear->kind == KIND_INT6) {
            int6_pack_panel(p, panel);
            continue;
        }
        for (int64_t n = panel * PANEL; n < smaller(p->linear->n, (panel + 1) * PANEL); n++)
            copy_row(p, n, p->rows + n * row_bytes, 1);
    }
    pool_barrier(worker);
}

static void gather(Worker *worker, void *argument) {
    Packing *p = argument;
    int64_t row_bytes = p->linear->k * bytes_of(p->linear->kind);
    for (int64_t i; (i = pool_tile(worker, p->count)) >= 0;) linear_row(p->linear, p->ids[i], p->rows + i * row_bytes);
    pool_barrier(worker);
}

EXPORT void parley_pack(const Library *library, const Linear *linear, const void *rows, void *packed) {
    Packing p = {.linear = linear, .packed = packed, .rows = (char *)rows};
    pool_run(library, pack, &p, linear->n * linear->k > SMALL_WORK);
}

/* Rows `ids` of W as they were packed, (count, k). */
EXPORT void parley_gather(const Library *library, const Linear *linear, const int64_t *ids, int64_t count, void *rows) {
    Packing p = {.linear = linear, .packed = (char *)linear->packed, .rows = rows, .ids = ids, .count = count};
    pool_run(library, gather, &p, count * linear->k > SMALL_WORK);
}
