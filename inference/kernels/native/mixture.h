/* A mixture of experts within a layer: what chooses them, and they. */
#ifndef PARLEY_MIXTURE_H
#define PARLEY_MIXTURE_H

#include "experts.h"

enum Scoring { SOFTMAX = 0, SIGMOID = 1, SPARSEMIXER = 2 };

#define MOST_GROUPS 64
#define MOST_BEST 2

typedef struct Mixture {
    const Linear *router; /* hidden -> experts; with `gated` one output more, by which the shared MLP is multiplied */
    const float *correction; /* [expert]: added to scores where experts are chosen, and not to weights; NULL: none */
    const Experts *experts;
    int64_t gated;
    int64_t scoring;      /* enum Scoring: what the router says becomes scores, which are weights */
    int64_t chosen;
    int64_t groups, kept; /* experts are chosen from `kept` of the groups, in which they follow each other */
    int64_t best;         /* a group's score is the sum of so many of its greatest */
    int64_t normalises;   /* weights are divided by the sum of those that are chosen */
    float scale;          /* and then multiplied by it */
    float margin;         /* SPARSEMIXER: how much worse than the best those are that it shares with */
} Mixture;

/* The memory of a step, for the layer with most of each. */
typedef struct Mixing {
    float *logits;    /* [row][router->n] */
    float *scores;    /* [row][experts], by which they are chosen */
    int64_t *experts; /* of Routing */
    float *weights;   /* of Routing */
    float *factors;   /* [row], of the shared MLP */
    float *shared;    /* [row][hidden]: what that gave */
    ExpertsWork work;
    ExpertsSizes sizes;
    int64_t outputs, chosen; /* of routers; of experts. 0: there are no mixtures */
} Mixing;

#endif
