/* Layers of a stack that keep a state in place of keys and values. */
#ifndef PARLEY_STATE_LAYER_H
#define PARLEY_STATE_LAYER_H

#include "native.h"
#include "state.h"

/* What Mamba reads of what it has convolved: how much of it is kept, and by what. `scan` lacks what a step says. */
typedef struct Selection {
    const Linear *projects; /* channels -> rank + 2 keys */
    const Linear *widens;   /* rank -> channels: the steps */
    ScanCall scan;
    const float *times_norm, *into_norm, *by_norm; /* of the rank, and of keys twice; or NULL */
    float eps;
} Selection;

#define SCAN_CHANNELS 64 /* of a tile */

/* What is between the two linears of such a layer. `convolution` and `recurrence` lack what a step says: runs, inputs
 * and outputs. Of a row of the first linear's outputs it is told where each part begins. */
typedef struct StateMixer {
    ConvolutionCall convolution;
    RecurrenceCall recurrence;
    int64_t recurs; /* 0: the convolution is all */
    int64_t mixed;  /* what is convolved */
    int64_t before, behind; /* what this is multiplied with first, and what comes of it; -1: nothing */
    int64_t queries, keys, values;  /* of the convolution's channels */
    int64_t steps, shares, gates; /* as in `recurrence`, which has no shares where this is -1 */
    /* Without shares: out = norm * (out silu(gate)) / its root mean square, of so many numbers each */
    const float *norm; /* [out->k], or NULL: ones, and nothing is divided by */
    int64_t norm_size;
    float norm_eps;
    const Selection *selection; /* NULL: none; else it stands in the recurrence's place */
} StateMixer;

#endif
