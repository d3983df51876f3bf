/* Products of each head's numbers with a linear of its own, all heads in one task: what latent attention's queries and
 * results are multiplied by. */
#include "latent.h"

#define HEAD_ROWS 48 /* without AMX: their inputs stay in the caches while panels pass */
#define TILES_OF_A_THREAD 8

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t products_bytes(const Library *library, const Linear *const *linears, int64_t heads, int64_t rows) {
    int64_t most = 0;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t bytes = (int64_t)linear_input_bytes(library, linears[h], rows);
        if (bytes > most) most = bytes;
    }
    return (most + 63) / 64 * 64;
}

void products_prepare(Worker *worker, const Products *p) {
    if (!p->prepared_stride) return; /* a phase has one loop */
    for (int64_t i; (i = pool_tile(worker, p->rows * p->heads)) >= 0;) {
        const int64_t h = i / p->rows, row = i % p->rows;
        if (linear_needs_input(worker->library, p->linears[h]))
            linear_input(worker->library, p->linears[h], p->x + h * p->x_head_stride, p->x_row_stride, p->rows, row,
                         row + 1, p->prepared + h * p->prepared_stride);
    }
    pool_barrier(worker);
}

ProductTiles products_cut(const Library *library, const Products *p) {
    const int64_t panels = linear_panels(p->linears[0]);
    int64_t together = panels * p->heads / (TILES_OF_A_THREAD * library->threads);
    together = together < 1 ? 1 : smaller(together, panels);
    const int64_t blocks = (panels + together - 1) / together;
    const int64_t most = linear_tile_rows(library, p->linears[0], p->rows, panels * p->heads, HEAD_ROWS);
    const int64_t chunks = (p->rows + most - 1) / most;
    return (ProductTiles){together, blocks, most, chunks, p->heads * blocks * chunks};
}

void products_tile(const Library *library, const Products *p, const ProductTiles *cut, int64_t tile) {
    const int64_t h = tile / (cut->blocks * cut->chunks), chunk = tile / cut->blocks % cut->chunks;
    const int64_t panel = tile % cut->blocks * cut->together, rows = p->rows;
    const Input input = {.x = p->x + h * p->x_head_stride, .x_stride = p->x_row_stride,
                         .prepared = p->prepared + h * p->prepared_stride, .rows = rows};
    const int by_amx = linear_by_amx(library, p->linears[h]);
    const int64_t first = by_amx ? smaller(rows, chunk * cut->rows) : rows * chunk / cut->chunks;
    const int64_t last = by_amx ? smaller(rows, (chunk + 1) * cut->rows) : rows * (chunk + 1) / cut->chunks;
    linear_tile(library, p->linears[h], &input, first, last, panel,
                smaller(panel + cut->together, linear_panels(p->linears[h])), p->y + h * p->y_head_stride, p->y_row_stride);
}

static void multiply(Worker *worker, void *argument) {
    const Products *p = argument;
    products_prepare(worker, p);
    const ProductTiles cut = products_cut(worker->library, p);
    for (int64_t tile; (tile = pool_tile(worker, cut.tiles)) >= 0;) products_tile(worker->library, p, &cut, tile);
    pool_barrier(worker);
}

/* --- what Python calls ------------------------------------------------------------------------ */

/* Bytes of what `parley_heads` prepares inputs in. */
EXPORT int64_t parley_heads_scratch(const Library *library, const Linear *const *linears, int64_t heads, int64_t rows) {
    return products_bytes(library, linears, heads, rows) * heads;
}

/* y[row][h] = x[row][h] W_h^T; strides of rows and heads are in floats. */
EXPORT void parley_heads(const Library *library, const Linear *const *linears, int64_t heads, int64_t rows,
                         const float *x, int64_t x_row_stride, int64_t x_head_stride, float *y, int64_t y_row_stride,
                         int64_t y_head_stride, void *scratch) {
    Products p = {linears, heads, rows, x, x_row_stride, x_head_stride, y, y_row_stride, y_head_stride, scratch,
                  products_bytes(library, linears, heads, rows)};
    if (rows) pool_run(library, multiply, &p, 1);
}
