/* Linears with AMX: tiles of 16 rows, and 16 outputs of 32 k in bfloat16 or 64 in int8, multiplied by one instruction
 * (Intel, Architecture Instruction Set Extensions Programming Reference, "Intel AMX").
 *
 * Panels lie as tiles want them. Inputs of bfloat16 weights are rounded to bfloat16, or split into three numbers of
 * bfloat16 whose sum they are (KIND_SPLIT): products of two bfloat16 are exact in float32, in which they are summed, so
 * that what comes out is as good as with float32's own multiplications, at a third of AMX's speed in place of a
 * sixteenth. Each output has one accumulator, to which are added, block by block of k, the sums of its even and of its
 * odd k, of each part of the inputs in turn, however many rows there are; where k is cut into slices, the accumulators
 * pass through memory, exactly. Of int8 the sums are exact, and so are the same bits as those of VPDPBUSD. */
#include "amx.h"

#if defined(HAS_AMX)
#define NATIVE_ISA 2
#define NATIVE_VNNI
#include "vector.h"

#include "linear.inc.h"
#pragma GCC target("amx-tile,amx-int8,amx-bf16")

#define BLOCK_BYTES 2048 /* of a panel: two tiles of weights, side by side */
#define BLOCK_LINES (BLOCK_BYTES / (2 * AMX_BYTES))
/* Of a panel that more than two tiles of rows read, so many blocks at a time, which stay in the first cache; decoded
 * ones fewer, as they are written there, too. Inputs in three parts fill that cache themselves: where nothing is
 * decoded, weights come from the second then, in longer slices, as sums pass through memory less often. Where fewer
 * rows read it, one decoded block is written while another is read. */
#define SLICE_BLOCKS 18
#define DECODED_BLOCKS 12
#define SPLIT_BLOCKS 64
#define FEW_BLOCKS 2
#define SHARED_SETS 1024 /* rows so many bytes apart share four of 64 sets, or fewer */
#define FETCHED 8192 /* bytes ahead, into the second cache; into the first, or half as far, took a tenth longer */

INLINE int is_integer(const int kind) { return kind == KIND_VNNI || kind == KIND_INT6; }
INLINE int is_decoded(const int kind) { return is_coded(kind) || kind == KIND_INT6; }
INLINE int64_t block_k(const int kind) { return is_integer(kind) ? 64 : 32; }
INLINE int64_t slice_blocks(const int kind) {
    return is_decoded(kind) ? DECODED_BLOCKS : is_split(kind) ? SPLIT_BLOCKS : SLICE_BLOCKS;
}

/* One panel's weights as tiles read them: in place, or decoded block by block. */
typedef struct Weights {
    const Tile *tile;
    const char *panel; /* as it is packed */
    char *decoded;     /* where blocks go that aren't read in place */
    int64_t slots;     /* of `decoded` */
    const Exception *exceptions;
    vi table;
} Weights;

INLINE void decode_coded(Weights *weights, int64_t block, char *to) {
    const int64_t quads = (weights->tile->linear->k + QUAD - 1) / QUAD;
    for (int64_t i = 0, quad = block * 32 / QUAD; i < 32 / QUAD; i++, quad++, to += 2 * QUAD_WEIGHTS) {
        vi words[2 * PAIR_VECTORS] = {{0}};
        if (quad < quads) {
            decode(PAIR_VECTORS, weights->panel + quad * QUAD_BYTES, 0, weights->table, words);
            if (__builtin_expect(weights->exceptions->at / QUAD_WEIGHTS == quad, 0))
                weights->exceptions = correct(PAIR_VECTORS, weights->exceptions, quad, 0, words);
        }
        UNROLL for (int v = 0; v < 2 * PAIR_VECTORS; v++) vistore(to + v * AMX_BYTES, words[v]);
    }
}

INLINE void decode_int6(const Weights *weights, int64_t block, char *to) {
    const int64_t eights = (weights->tile->linear->k + EIGHT - 1) / EIGHT;
    for (int64_t i = 0, eight = block * 64 / EIGHT; i < 64 / EIGHT; i++, eight++, to += EIGHT * PANEL) {
        vi lines[EIGHT_LINES] = {{0}};
        if (eight < eights) decode_eight(weights->panel + eight * EIGHT_BYTES, lines);
        UNROLL for (int v = 0; v < EIGHT_LINES; v++) vistore(to + v * AMX_BYTES, lines[v]);
    }
}

/* The panel's last block where it isn't whole. */
static const char *pad_block(const Weights *weights, const char *from, int64_t lines) {
    memcpy(weights->decoded, from, (size_t)(lines * 2 * AMX_BYTES));
    memset(weights->decoded + lines * 2 * AMX_BYTES, 0, (size_t)((BLOCK_LINES - lines) * 2 * AMX_BYTES));
    amx_memory_is_written();
    return weights->decoded;
}

INLINE void decode_block(const int kind, Weights *weights, int64_t block) {
    char *to = weights->decoded + block % weights->slots * BLOCK_BYTES;
    if (kind == KIND_INT6)
        decode_int6(weights, block, to);
    else
        decode_coded(weights, block, to);
    amx_memory_is_written();
}

INLINE const char *weights_of(const int kind, const Weights *weights, int64_t block) {
    if (is_decoded(kind)) return weights->decoded + block % weights->slots * BLOCK_BYTES;
    const int64_t together = is_integer(kind) ? 4 : 2;
    int64_t left = (weights->tile->linear->k - block * block_k(kind) + together - 1) / together;
    const char *from = weights->panel + block * BLOCK_BYTES;
    return left < BLOCK_LINES ? pad_block(weights, from, left) : from;
}

/* Tiles are named by constants, so these are no functions. A stream comes from the second cache, past the first. */
#define LOAD(tile, is_stream, from, stride)           \
    do {                                              \
        if (is_stream)                                \
            _tile_stream_loadd(tile, (from), stride); \
        else                                          \
            _tile_loadd(tile, (from), stride);        \
    } while (0)
#define ADD_PRODUCTS(sum, inputs, weights, integers) \
    do {                                             \
        if (integers)                                \
            _tile_dpbusd(sum, inputs, weights);      \
        else                                         \
            _tile_dpbf16ps(sum, inputs, weights);    \
    } while (0)

/* Some rows, one tile or two, and a slice of the panel. */
typedef struct Pass {
    int64_t row, rows, from, to; /* blocks of k */
    float *sums;                 /* [rows][PANEL]: in y itself, or elsewhere */
    int64_t stride;              /* bytes */
    const float *bias;           /* of the panel, or NULL */
    int64_t turn, turns; /* of several passes over the slice */
    int64_t ahead;       /* bytes to what is read next: then each pass fetches its share */
} Pass;

INLINE void begin_sums(const Pass *p, const int two) {
    const char *sums = (const char *)p->sums, *below = sums + AMX_ROWS * p->stride;
    if (!p->from && !p->bias) {
        _tile_zero(0);
        _tile_zero(1);
        if (two) _tile_zero(2);
        if (two) _tile_zero(3);
        return;
    }
    const char *first = p->from ? sums : (const char *)p->bias, *second = p->from ? below : first;
    const int64_t stride = p->from ? p->stride : 0;
    _tile_loadd(0, first, stride);
    _tile_loadd(1, first + AMX_BYTES, stride);
    if (two) _tile_loadd(2, second, stride);
    if (two) _tile_loadd(3, second + AMX_BYTES, stride);
}

INLINE void end_sums(const Pass *p, const int two) {
    char *sums = (char *)p->sums, *below = sums + AMX_ROWS * p->stride;
    _tile_stored(0, sums, p->stride);
    _tile_stored(1, sums + AMX_BYTES, p->stride);
    if (two) _tile_stored(2, below, p->stride);
    if (two) _tile_stored(3, below + AMX_BYTES, p->stride);
}

INLINE int64_t block_bytes(const int kind) {
    if (kind == KIND_INT6) return 64 / EIGHT * EIGHT_BYTES;
    return is_coded(kind) ? 32 / QUAD * QUAD_BYTES : BLOCK_BYTES;
}

INLINE void fetch_block(const int kind, const int several, const Weights *weights, const Pass *p, int64_t block) {
    const int64_t bytes = block_bytes(kind);
    const char *at = weights->panel + block * bytes + p->ahead;
    if (!several) {
        UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
        return;
    }
    const int64_t lines = bytes / 64;
    for (int64_t i = lines * p->turn / p->turns; i < lines * (p->turn + 1) / p->turns; i++)
        __builtin_prefetch(at + 64 * i, 0, 2);
}

INLINE void run_pass(const int kind, const int two, const int several, Weights *weights, const Pass *p) {
    const Tile *t = weights->tile;
    const int64_t part = (t->linear->k + 63) / 64 * 128, stride = t->x_stride;
    const char *x = t->x + p->row * stride, *below = x + AMX_ROWS * stride;
    /* What is read again soon is to stay in the first cache: weights by several passes, else inputs. In parts they
     * fill it anyway. */
    const int stream_inputs = several && kind != KIND_SPLIT, stream_weights = !several && !is_decoded(kind);
    /* Later turns find what the first has decoded. Inputs in parts take so long that there is time to decode the next
     * block meanwhile: tiles can't be loaded from what has just been written. With others memory is waited for. */
    const int decodes = is_decoded(kind) && !p->turn, ahead = decodes && is_split(kind);
    begin_sums(p, two);
    if (ahead) decode_block(kind, weights, p->from);
    for (int64_t block = p->from; block < p->to; block++) {
        if (decodes && !ahead) decode_block(kind, weights, block);
        const char *w = weights_of(kind, weights, block);
        LOAD(6, stream_weights, w, 2 * AMX_BYTES);
        LOAD(7, stream_weights, w + AMX_BYTES, 2 * AMX_BYTES);
        fetch_block(kind, several, weights, p, block);
        for (int i = 0; i < (is_split(kind) ? 3 : 1); i++) {
            LOAD(4, stream_inputs, x + block * AMX_BYTES + i * part, stride);
            ADD_PRODUCTS(0, 4, 6, is_integer(kind));
            ADD_PRODUCTS(1, 4, 7, is_integer(kind));
            if (ahead && i == 0 && block + 1 < p->to) decode_block(kind, weights, block + 1);
            if (!two) continue;
            LOAD(5, stream_inputs, below + block * AMX_BYTES + i * part, stride);
            ADD_PRODUCTS(2, 5, 6, is_integer(kind));
            ADD_PRODUCTS(3, 5, 7, is_integer(kind));
        }
    }
    end_sums(p, two);
}

/* A pass's sums become outputs; those of integers, which are exact, are scaled now. */
INLINE void finish_rows(const int kind, const Tile *t, int64_t panel, const Pass *p) {
    const Linear *linear = t->linear;
    const int64_t first = panel * PANEL, columns = linear->n - first;
    const Block b = {.x_scales = is_integer(kind) ? t->x_scales + p->row : NULL,
                     .scales = is_integer(kind) ? linear->scales + first : NULL,
                     .sums = is_integer(kind) ? linear->sums + first : NULL,
                     .bias = linear->bias ? linear->bias + first : NULL};
    for (int64_t row = 0; row < p->rows; row++) {
        const float *sums = (const float *)((const char *)p->sums + row * p->stride);
        float *y = t->y + (p->row + row) * t->y_stride + first;
        UNROLL for (int column = 0; column < PANEL; column += LANES) {
            Sum sum = {.i = viload(sums + column)};
            vf out = is_integer(kind) ? finish(kind, &b, sum, (int)row, column) : sum.f;
            if (columns >= PANEL)
                vstore(y + column, out);
            else if (columns > column)
                vstore_part(y + column, columns - column, out);
        }
    }
}

/* A panel: slice by slice for each two tiles of rows. The last rows of several such, which fill no two tiles, have the
 * shape of those before, and so their sums, and those of panels that aren't whole, are in memory of their own; so are
 * those of which y's rows would share few of the caches' sets. */
INLINE void multiply_tiles(const int kind, const Tile *t, int64_t panel, char *decoded, float *sums) {
    const Linear *linear = t->linear;
    const int64_t blocks = (linear->k + block_k(kind) - 1) / block_k(kind), all = t->row_to - t->row_from;
    const int several = all > 2 * AMX_ROWS;
    const int in_place = linear->n - panel * PANEL >= PANEL && t->y_stride * (int64_t)sizeof(float) % SHARED_SETS;
    const int64_t slice = blocks < slice_blocks(kind) ? blocks : slice_blocks(kind);
    const int64_t turns = (all + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS);
    Weights weights = {.tile = t, .panel = t->w + panel * t->panel_bytes, .decoded = decoded,
                       .slots = several ? slice : FEW_BLOCKS};
    if (is_coded(kind)) {
        weights.table = table_of(linear->bases[panel]);
        weights.exceptions = linear->exceptions + linear->firsts[panel];
    }
    if (several || all > AMX_ROWS)
        amx_shape_linear(AMX_ROWS, several ? AMX_ROWS : all - AMX_ROWS);
    else
        amx_shape_linear(all, AMX_ROWS);
    for (int64_t from = 0, to; from < blocks; from = to) {
        to = several && from + slice < blocks ? from + slice : blocks;
        for (int64_t turn = 0; turn < turns; turn++) {
            const int64_t row = t->row_from + turn * 2 * AMX_ROWS;
            const int64_t rows = t->row_to - row < 2 * AMX_ROWS ? t->row_to - row : 2 * AMX_ROWS;
            const int direct = in_place && (!several || rows == 2 * AMX_ROWS);
            Pass pass = {.row = row, .rows = rows, .from = from, .to = to,
                         .sums = direct ? t->y + row * t->y_stride + panel * PANEL : sums + turn * 2 * AMX_ROWS * PANEL,
                         .stride = (int64_t)sizeof(float) * (direct ? t->y_stride : PANEL),
                         .bias = linear->bias && !is_integer(kind) ? linear->bias + panel * PANEL : NULL,
                         .turn = turn, .turns = turns, .ahead = several ? slice * block_bytes(kind) : FETCHED};
            if (rows <= AMX_ROWS)
                run_pass(kind, 0, several, &weights, &pass);
            else if (several)
                run_pass(kind, 1, 1, &weights, &pass);
            else
                run_pass(kind, 1, 0, &weights, &pass);
            if (to == blocks && (!direct || is_integer(kind))) finish_rows(kind, t, panel, &pass);
        }
    }
}

/* `room`: blocks of a slice where they are decoded, else a panel's last one. */
#define DEFINE_TILES(name, kind, room)                                          \
    void name(const Tile *t) {                                                  \
        char decoded[(room)*BLOCK_BYTES] __attribute__((aligned(64)));          \
        float sums[MOST_TILE_ROWS * PANEL] __attribute__((aligned(64)));        \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++)       \
            multiply_tiles(kind, t, panel, decoded, sums);                      \
    }

DEFINE_TILES(linear_rounded_amx, KIND_ROUNDED, 1)
DEFINE_TILES(linear_coded_rounded_amx, KIND_CODED_ROUNDED, DECODED_BLOCKS)
DEFINE_TILES(linear_split_amx, KIND_SPLIT, 1)
DEFINE_TILES(linear_coded_split_amx, KIND_CODED_SPLIT, DECODED_BLOCKS)
DEFINE_TILES(linear_int8_amx, KIND_VNNI, 1)
DEFINE_TILES(linear_int6_amx, KIND_INT6, DECODED_BLOCKS)

/* --- inputs --------------------------------------------------------------------------------- */

/* What the upper halves of floats say; what they don't is left. */
INLINE vf take_upper(vf *left) {
    vf taken = (vf)((vi)*left & viset1(-65536));
    *left = _mm512_maskz_sub_ps(_mm512_cmp_ps_mask(*left, taken, _CMP_NEQ_UQ), *left, taken);
    return taken;
}

/* Of 32 numbers the first part, and the others `part` words behind each other. */
INLINE void split(vf low, vf high, uint16_t *words, int64_t part) {
    vh upper;
    for (int i = 0; i < 2 * LANES; i++) upper[i] = (int16_t)(2 * i + 1);
    UNROLL for (int j = 0; j < 3; j++) {
        __m512i a = (__m512i)take_upper(&low), b = (__m512i)take_upper(&high);
        _mm512_storeu_si512(words + j * part, _mm512_permutex2var_epi16(a, (__m512i)upper, b));
    }
}

/* A row as three, one behind the other, each a number of lines: what the upper half of a float says, what that of the
 * rest says, and what is left then, which fits. An infinity is the first's alone. */
void split_row_amx(const float *x, int64_t k, uint16_t *row) {
    const int64_t part = (k + 63) / 64 * 64;
    int64_t i = 0;
    for (; i + 2 * LANES <= k; i += 2 * LANES) split(vload(x + i), vload(x + i + LANES), row + i, part);
    for (; i < part; i += 2 * LANES) {
        int64_t left = k - i;
        vf low = left > 0 ? vload_part(x + i, left) : vzero();
        vf high = left > LANES ? vload_part(x + i + LANES, left - LANES) : vzero();
        split(low, high, row + i, part);
    }
}
#endif
