/* Layers that keep a state of each sequence: a short convolution, and recurrences. Between
 * state.c and the copies of state.inc.h.
 *
 * A state has two places, so that a step can be computed again: what was read is in one, what follows goes to the
 * other. Tokens come one after the other whatever a step's size is: the same bits in pieces and at once. */
#ifndef PARLEY_STATE_H
#define PARLEY_STATE_H

#include "native.h"

#define STATE_BLOCK 32     /* numbers of a value that are computed side by side */
#define MOST_STATE_KEYS 256 /* numbers of a key */

/* A step's tokens: those of one sequence follow each other. */
typedef struct Runs {
    int64_t count;
    const int64_t *ends;   /* (count): how many tokens the step has up to and with it */
    const int64_t *reads;  /* (count): the place of what was read of the sequence before; -1: nothing was */
    const int64_t *writes; /* (count): the place of what follows */
} Runs;

/* out[t][c] = behind[t][c] f(bias[c] + sum over j of kernel[j][c] x[t - taps + 1 + j][c]), with before[t][c] x[t][c] for
 * x[t][c]: rows of the three are as far apart */
typedef struct ConvolutionCall {
    const Runs *runs;
    const float *x; /* (tokens, channels), rows `stride` numbers apart */
    int64_t stride, channels, taps;
    const float *kernel; /* (taps, channels), the oldest input's first */
    const float *bias;   /* (channels), or NULL */
    int64_t silu;        /* f: 1: SiLU, 0: none */
    const float *before, *behind; /* NULL: ones */
    float *recent;       /* (places, taps - 1, channels): the last inputs, the oldest first */
    float *out;          /* (tokens, channels) */
} ConvolutionCall;

/* Of each head, with a matrix S of what was read:
 *   S = decay S + k (share v), out = q S + skip v, decay = e^(rate share): Mamba 2 (Dao, Gu 2024, arXiv:2405.21060)
 *   S = decay S + k (share (v - decay k S)), out = q S, normalised and gated, decay = e^(rate softplus(step + bias)):
 *   the gated delta rule (Yang et al. 2024, arXiv:2412.06464), queries and keys of length one */
typedef struct RecurrenceCall {
    const Runs *runs;
    int64_t key_heads, value_heads, key_dim, value_dim;
    const float *queries, *keys; /* (tokens, key_heads, key_dim), rows so many numbers apart, and values, too */
    const float *values;         /* (tokens, value_heads, value_dim) */
    int64_t stride;
    const float *steps; /* (tokens, value_heads); Mamba 2: share = softplus(this + bias), within the limits */
    int64_t steps_stride;
    const float *shares; /* NULL: Mamba 2; else as steps: share = scale sigmoid(this) */
    int64_t shares_stride;
    const float *gates; /* beside shares: (tokens, value_heads, value_dim) */
    int64_t gates_stride;
    const float *rates, *step_biases; /* (value_heads) */
    const float *norm;                /* beside shares: (value_dim) */
    const float *skips;               /* without: (value_heads) */
    float eps, scale, least, most;    /* the limits last */
    float *states; /* (places, value_heads, blocks, key_dim, STATE_BLOCK), blocks = value_dim / STATE_BLOCK rounded up */
    float *out;    /* (tokens, value_heads, value_dim) */
} RecurrenceCall;

/* Of each channel, with numbers S of what was read, one for each of `keys`:
 *   S = e^(rate share) S + share x k, out = (sum of q S + skip x) silu(gate), share = softplus(step + bias):
 * Mamba (Gu, Dao 2023, arXiv:2312.00752) */
typedef struct ScanCall {
    const Runs *runs;
    int64_t channels, keys;
    const float *x;     /* (tokens, channels) */
    const float *steps; /* the same, rows so many numbers apart */
    int64_t steps_stride;
    const float *into, *by; /* k and q, (tokens, keys) */
    int64_t into_stride, by_stride;
    const float *gates; /* (tokens, channels) */
    int64_t gates_stride;
    const float *rates;               /* (keys, channels) */
    const float *step_biases, *skips; /* (channels) */
    float *states;                    /* (places, keys, channels) */
    float *out;                       /* (tokens, channels) */
} ScanCall;

typedef void ChannelTile(const void *call, int64_t run, int64_t first, int64_t last); /* channels */
typedef void RecurrenceTile(const RecurrenceCall *call, int64_t run, int64_t head);
ChannelTile convolution_tile_baseline, convolution_tile_avx2, convolution_tile_avx512; /* of a ConvolutionCall */
ChannelTile scan_tile_baseline, scan_tile_avx2, scan_tile_avx512;                      /* of a ScanCall */
RecurrenceTile recurrence_tile_baseline, recurrence_tile_avx2, recurrence_tile_avx512;

#endif
