/* What Gemma 3n and Gemma 4 give every layer of each token beside the residual stream: per-layer inputs. */
#ifndef PARLEY_PER_LAYER_H
#define PARLEY_PER_LAYER_H

#include "native.h"

/* A layer's part: x += norm(projection(activation(gate(x)) * inputs)), behind its MLP. */
typedef struct PerLayer {
    const Linear *gate, *projection; /* hidden -> gate->n -> hidden */
    const float *norm;               /* (hidden,) */
    int64_t first; /* where in a row of inputs this layer's begin */
} PerLayer;

/* How all layers' inputs are made of a token's embedding x: factor * (norm(projection_factor * projection(x)) +
 * table_factor * table[id]), with a norm of each layer's. */
typedef struct PerLayerInputs {
    const Linear *projection; /* hidden -> layers * size */
    const void *table;        /* [id][layers * size] */
    int64_t kind;             /* of `table`: enum Kind, no int8 */
    const float *norm;        /* (size,) */
    int64_t size;
    int64_t given; /* whose row of the table is that of rows that are no embedding's: an id */
    float eps, projection_factor, table_factor, factor;
} PerLayerInputs;

#endif
