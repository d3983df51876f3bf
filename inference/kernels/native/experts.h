/* A mixture's experts: two linears each, of which every row of inputs is given to a few. */
#ifndef PARLEY_EXPERTS_H
#define PARLEY_EXPERTS_H

#include "native.h"

enum Activation { SILU = 0, GELU_TANH = 1, GELU = 2, SQUARED_RELU = 3, RELU = 4, XIELU = 5 }; /* the last one in layers alone */

/* From what an expert's first linear gives to what its second reads: activation(gate) (up + offset), or activation(up)
 * without gates. Gates are cut at the limit, ups at both its sides, before. */
typedef struct Gating {
    int64_t gates; /* 1: the first linear has gates, then ups */
    int64_t activation;
    float factor; /* SILU: x sigmoid(factor x) */
    float limit;  /* infinite: none */
    float offset;
} Gating;

typedef struct Experts {
    int64_t count, hidden, inner;
    const Linear *const *up, *const *down; /* [expert]: hidden -> inner, or 2 inner with gates; inner -> hidden */
    Gating gating;
} Experts;

/* Which experts each row is given to, and what their results are multiplied by. */
typedef struct Routing {
    int64_t rows, chosen;
    const int64_t *experts; /* [row][chosen]; what is no expert's number stands for none */
    const float *weights;   /* [row][chosen] */
} Routing;

/* An expert that rows are given to: the pairs of a row and an expert follow each other by experts, then rows. */
typedef struct Busy {
    int64_t expert, first, rows; /* of the pairs */
    int64_t up_input, down_input; /* where in `prepared`, bytes */
    int64_t up_rows, down_rows;   /* of a tile */
} Busy;

/* What one step needs; the memory grows to the largest and stays. */
typedef struct ExpertsWork {
    int64_t pairs, busy_count;
    int64_t gathers; /* 1: inputs are put in the order of the pairs, or prepared */
    int64_t prepares; /* 1: inputs of second linears are */
    Busy *busy;
    int64_t *up_tiles, *down_tiles; /* [busy], and how many there are: where each one's tiles begin */
    int64_t *counts, *places;       /* [expert]: its rows, and its place in `busy` */
    int64_t *row;                   /* [pair] */
    int64_t *whose;                 /* [pair]: its place in `busy` */
    int64_t *pair;                  /* [row][chosen], rising; -1: none */
    float *weight;                  /* the same */
    float *gathered;                /* [pair][hidden] */
    float *wide;                    /* [pair][2 inner], where gates and ups share a panel */
    float *inner;                   /* [pair][inner] */
    float *found;                   /* [pair][hidden] */
    char *prepared;
    void *memory;
    int64_t room;
} ExpertsWork;

typedef struct ExpertsCall {
    const Library *library;
    const Experts *experts;
    const Routing *routing;
    ExpertsWork *work;
    const float *x; /* (rows, hidden) */
    float *y;       /* (rows, hidden): the sum of what its experts give, those with lower numbers first */
    const float *shared;  /* (rows, hidden): what that sum begins with; NULL: nothing */
    const float *factors; /* [row], of it; NULL: none */
} ExpertsCall;

/* Of all experts that are computed in one memory, the most. */
typedef struct ExpertsSizes {
    int64_t count, hidden, inner, wide;
    int64_t prepared; /* bytes of one pair */
} ExpertsSizes;

/* Of the first linear: a gate's panel goes with the up's that it is for, if none has both. */
static inline int64_t experts_up_panels(const Experts *experts) {
    const int64_t gates = experts->gating.gates, sides = gates && experts->inner % PANEL ? 2 : 1;
    return (sides * experts->inner + PANEL - 1) / PANEL;
}

/* Have the sizes be enough for these, too. */
void experts_include(const Library *library, const Experts *experts, ExpertsSizes *sizes);
/* Have memory for so many rows; returns 0, or -1 if there is none. */
int experts_reserve(const ExpertsSizes *sizes, int64_t rows, int64_t chosen, ExpertsWork *work);
/* Find out who computes what; by one thread. */
void experts_plan(const ExpertsCall *call);

/* Within a task, as phases of their own, barriers included; after experts_plan, which may be a phase of that task: how
 * many phases there are depends on the experts alone, as a thread that comes late finds another layer's plan. */
void experts_baseline(Worker *worker, const ExpertsCall *call);
void experts_avx2(Worker *worker, const ExpertsCall *call);
void experts_avx512(Worker *worker, const ExpertsCall *call);

#endif
