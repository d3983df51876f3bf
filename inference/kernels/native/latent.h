/* Products of each head's numbers with a linear of its own, as a task or as phases of one. */
#ifndef PARLEY_LATENT_H
#define PARLEY_LATENT_H

#include "native.h"

/* y[row][head] = x[row][head] W_head^T; strides are in floats. */
typedef struct Products {
    const Linear *const *linears; /* [head], of one shape */
    int64_t heads, rows;
    const float *x; /* [row][head][k] */
    int64_t x_row_stride, x_head_stride;
    float *y; /* [row][head][n] */
    int64_t y_row_stride, y_head_stride;
    char *prepared;
    int64_t prepared_stride; /* bytes of a head */
} Products;

/* How they are cut: by heads, then by chunks of rows, then by blocks of panels. */
typedef struct ProductTiles {
    int64_t together, blocks; /* panels of a tile; such tiles of a head */
    int64_t rows, chunks;
    int64_t tiles;
} ProductTiles;

/* Bytes of a head's prepared inputs: whole lines; 0: none are needed. */
int64_t products_bytes(const Library *library, const Linear *const *linears, int64_t heads, int64_t rows);
/* Inside a task: prepare what linears read, a phase with its barrier; none if nothing is needed. */
void products_prepare(Worker *worker, const Products *products);
ProductTiles products_cut(const Library *library, const Products *products);
void products_tile(const Library *library, const Products *products, const ProductTiles *cut, int64_t tile);

#endif
