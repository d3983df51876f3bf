/* Layers of a stack that keep a state in place of keys and values. */
#ifndef PARLEY_STATE_LAYER_H
#define PARLEY_STATE_LAYER_H

#include "state.h"

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
} StateMixer;

#endif
