/* Layers of a stack whose heads attend to latents (DeepSeek-V2, arXiv:2405.04434, section 2.1). */
#ifndef PARLEY_LATENT_LAYER_H
#define PARLEY_LATENT_LAYER_H

#include "latent.h"

/* What is between the two linears of such a layer. The first one gives queries, or what these are made of, then a token's
 * latent, then the part of its key that is rotated and that all heads share. A head's query is [nope, rotated]. */
typedef struct LatentMixer {
    const Linear *queries; /* what makes them of the first numbers, normalised; NULL: they are these */
    const Linear *const *keys;   /* [head]: nope -> rank, by which queries are multiplied */
    const Linear *const *values; /* [head]: rank -> value, and sums of latents by these */
    const float *query_norm;     /* with `queries`: of what these are made of */
    const float *latent_norm;
    float query_eps, latent_eps; /* norms are RMS */
    int64_t heads, nope, rotated, rank, value;
} LatentMixer;

/* The memory of a step, for the layer with most of each. */
typedef struct LatentWork {
    float *lowered;  /* [row][queries->k], normalised */
    float *queries;  /* [row][head][nope + rotated], where they are made */
    float *absorbed; /* [row][head][rank + rotated]: the queries of latents */
    float *found;    /* [row][head][rank]: sums of latents */
    char *prepared;
    int64_t *positions; /* [row]; NULL: there are no such layers */
} LatentWork;

static inline int64_t latent_query_dim(const LatentMixer *mixer) { return mixer->nope + mixer->rotated; }
static inline int64_t latent_key_dim(const LatentMixer *mixer) { return mixer->rank + mixer->rotated; }
/* Of a row of what the first linear gives, what is before the latent. */
static inline int64_t latent_first(const LatentMixer *mixer) {
    return mixer->queries ? mixer->queries->k : mixer->heads * latent_query_dim(mixer);
}

#endif
