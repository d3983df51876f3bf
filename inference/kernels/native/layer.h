/* All decoder layers of a step in one task. */
#ifndef PARLEY_LAYER_H
#define PARLEY_LAYER_H

#include "attention.h"
#include "latent_layer.h"
#include "mixture.h"
#include "per_layer.h"
#include "rows.h"
#include "state_layer.h"

/* A norm is RMS, or centred where the shape says so, with the weights of its module (1 + w where the model says so) and
 * then, if it is centred, as many biases; or absent: NULL. An MLP whose first linear gives as many numbers as its second
 * reads has no gates. */
typedef struct Layer {
    const Linear *qkv, *out; /* NULL: it mixes no tokens; then there is no state, and no cache */
    const Linear *gate_up, *down; /* NULL: a mixture that there is shares nothing among all rows */
    const Mixture *mixture;       /* NULL: none; else its experts' results are added to the MLP's */
    const StateMixer *state; /* NULL: it attends; else `qkv` has what this reads, and there is no cache */
    const LatentMixer *latent; /* NULL: its heads attend to keys of their own; else `qkv` has what this reads */
    const float *input_norm, *mid_norm;     /* of what attention and the MLP read */
    const float *attention_norm, *mlp_norm; /* of what they give */
    const float *query_norm, *key_norm;
    const float *attended_norm, *inner_norm; /* of what `out` reads, of all heads, and of what `down` reads */
    int64_t query_norm_size, key_norm_size; /* head_dim, or that of all heads together */
    int64_t rotary;                         /* which of the step's rotary embeddings; -1: none */
    int64_t gated; /* behind each head's query (1), or behind all (2), `qkv` has gates, by whose sigmoid is multiplied
                    * what heads are given */
    int64_t parallel; /* 1: the MLP reads what attention reads, and both are added to that (GPT-J, Wang 2021) */
    int64_t late_norms; /* 1: those of queries and keys, of each head, come behind the rotation */
    const float *query_scales; /* [position]: what queries are multiplied by; NULL: nothing */
    const float *xielu; /* with that activation: what the square above 0, all, the curve below 0, and its end are */
    Attention how;
    Cache cache;
    int64_t rotary_dim; /* how many numbers of its heads are rotated; heads are as the cache has them */
    int64_t borrows;    /* 1: its keys and values are an earlier layer's, whose cache it has, and `qkv` has queries alone */
    int64_t plan;       /* which of the stack's; set by parley_stack_open */
    const float *value_norm;   /* (head_dim,); NULL: none */
    const PerLayer *per_layer; /* NULL: it has no inputs of its own */
    float scale;               /* what all that it gives is multiplied by; 0: nothing */
} Layer;

/* Whether a layer has an MLP or a mixture, and doesn't end with what mixes its tokens. */
static inline int has_mlp(const Layer *layer) { return layer->gate_up || layer->mixture; }

typedef struct Shape {
    int64_t hidden, heads, kv_heads, head_dim, rotary_dim, interleaved, activation;
    int64_t centred; /* 1: all norms subtract the mean, and those of queries and keys are of each head */
    float eps, residual; /* residual: what attention and the MLP give is multiplied by it */
} Shape;

/* A copy of a head's weights in fewer bits, by which is found what can't be a row's greatest logit (screen.inc.h). */
typedef struct Screen {
    const Linear *linear; /* int8 or int6; without a bias, as the head */
    const float *errors;  /* (n rounded up to PANEL) the norm of what rounding took from a row of the head */
    const float *norms;   /* (the same) the norm of a rounded row */
} Screen;

#define SCREEN_MOST 96 /* panels of a row that the head computes; if they are more, all */

/* The memory of a step whose rows are screened. */
typedef struct Screening {
    int64_t rows;        /* 0: this step's are not screened */
    void *prepared;      /* inputs in 8 bits, maybe the head's */
    float *norms, *lost; /* [row] of what the head reads, and of what the inputs in 8 bits leave out of it */
    float *sure, *possible; /* [row][panel] what its greatest logit there is at least, and at most */
    int32_t *counts;     /* [row] of its candidates; -1: it has to be computed in full */
    int32_t *candidates; /* [row][SCREEN_MOST] panels */
    Part *parts;         /* [row][SCREEN_PARTS] */
    int32_t *left;       /* whether there are rows to be computed in full */
} Screening;

#define SCREEN_PARTS 4 /* of a row: the panel that promises most, and the other candidates, for several threads */

/* What an adapter adds to some panels of a linear's outputs: y += up (scale * down x) (LoRA, Hu et al. 2021). Both
 * sides are float, or bfloat16 where `narrow` says so. */
typedef struct LowRank {
    const void *down; /* (rank, k) */
    const void *up;   /* [panel][rank][PANEL], zeros for outputs that nothing is added to */
    int64_t rank, first, panels; /* first: of the linear's panels */
    int32_t down_narrow, up_narrow;
    float scale;
} LowRank;

typedef struct LowRanks {
    const LowRank *several; /* one after the other: the outputs of merged linears have one each */
    int64_t count;
} LowRanks;

typedef struct Adapters {
    const LowRanks *linears; /* [adapter][layer][qkv, out, gate_up, down] */
    int64_t rank;            /* most of a linear's, all its low ranks together */
} Adapters;

/* Adds up, over the processes that have a share each of every layer, what these have made of `count` numbers (Shoeybi et
 * al. 2019, Megatron-LM); called by the thread that runs the step. Returns 0; else the step is lost. */
typedef int (*Reduce)(void *context, float *values, int64_t count);

enum LayerLinear { QKV = 0, OUT = 1, GATE_UP = 2, DOWN = 3, LAYER_LINEARS = 4 };

/* What the layers of one model need; the buffers grow to the largest step seen and stay. */
typedef struct Stack {
    Shape shape;
    const Layer *layers;
    int64_t count;
    AttentionPlan *plans; /* of each shape of caches */
    int64_t plan_count;
    float *hidden[2];  /* [row][hidden], taken in turns: one is read while the other is written */
    float *normed;     /* [row][hidden] */
    float *qkv;        /* [row][qkv->n], of the layer's own */
    float *attended;   /* [row][out->k], the same */
    float *convolved;  /* [row][channels], the same: of layers that keep a state */
    const Runs *runs;  /* the step, for those */
    float *selected, *times, *steps; /* [row][projects->n], [row][widens->k], [row][channels]: of Mamba's */
    float *given;      /* [row][hidden]: what attention or the MLP gave */
    float *beside;     /* [row][hidden]: what attention gave beside a mixture */
    float *gate_up;    /* [row][2 inner], where gates and ups share a panel */
    float *inner;      /* [row][inner], of the layer's own */
    float *side;       /* [row][per_layer->gate->n] */
    float *per_layer;  /* [row][all layers' inputs] */
    void *prepared;    /* inputs of linears that need it */
    float *low;        /* [row][adapters.rank]: what adapters make of a linear's inputs */
    float *own;        /* [thread][own_size]: inputs that each thread makes for itself, of few rows, then their `low` */
    int32_t *adapters_left; /* [row] of those that get logits, where the last layer is trimmed */
    Screening screening;
    Mixing mixing;
    LatentWork latents;
    Adapters adapters;
    Reduce reduce; /* NULL: the layers are whole */
    void *reduces; /* its context */
    int lost;      /* it has failed, in this step */
    int mixes_beside; /* a layer has a mixture in parallel with its attention */
    void *memory;
    int64_t own_size, own_inputs, room;
} Stack;

/* What a model has before its layers and after them. */
typedef struct Ends {
    const Linear *packed_table; /* the embedding (vocabulary, hidden) as a linear's weight; or NULL, and it is */
    const void *table;          /* [id][hidden] */
    int64_t table_kind;         /* of `table`: enum Kind, no int8 */
    int64_t vocabulary;
    const Linear *head;
    const float *norm; /* the last one's weights */
    float eps;
    float embedding_factor, head_factor; /* the embedding, and what the head is given, are multiplied by them */
    const Screen *screen; /* NULL: there is none */
    int64_t trims;        /* what only rows without logits would need of the last layer is left out */
    const float *positions; /* [position][hidden]: added to the embedding; NULL: nothing is */
    const float *first_norm; /* of what the layers are given, as theirs; NULL: none */
    const PerLayerInputs *per_layer; /* NULL: layers have no inputs of their own */
} Ends;

/* Whether a screen reads what was prepared for the head: both take inputs in 8 bits. */
static inline int shares_input(const Ends *ends) { return ends->head->kind == KIND_INT8; }

/* A step's tokens, and what is made of them. */
typedef struct Tokens {
    const int64_t *ids;    /* [row]; from `vocabulary` on they count the rows of `given` */
    const int64_t *rows;   /* [count]: which rows get logits, rising; NULL: all that there are */
    int64_t count;
    float *logits;         /* [count][vocabulary of the head] */
    Statistics statistics; /* of the logits; its indices NULL: not wanted */
    const int32_t *adapters; /* [row]: which adapter computes it, -1: none; NULL: none of all */
    int64_t only; /* 1: of the statistics, which are wanted, indices and maxima, and no logits; if there is a screen */
    const float *given;  /* [given_count][hidden]: what the layers are given in place of rows of the embedding */
    int64_t given_count;
    int64_t by_row; /* 1: the tables of rotations have a row for each row of the step, and not for each position */
} Tokens;

typedef struct StackCall {
    Stack *stack;
    const Library *library;
    const Step *step;
    const float *const *cosines, *const *sines; /* of each rotary embedding: [row][rotary_dim] */
    int64_t by_position; /* of the tables' rows */
    const Ends *ends;    /* NULL: the layers only, from `in` to `out` */
    const Tokens *tokens; /* with the ends */
    const int32_t *adapters; /* as in Tokens */
    const float *in;
    float *out;
    const float *per_layer; /* [row][per_layer_stride]: layers' own inputs; NULL: there are none */
    int64_t per_layer_stride;
    const int64_t *origins; /* [row]: which of those rows it is; NULL: itself */
    int64_t rows;
    int trims; /* in this step there are such rows */
    int few; /* rows are so few that every thread makes the linears' inputs for itself, which saves barriers */
} StackCall;

void stack_task_baseline(Worker *worker, void *call);
void stack_task_avx2(Worker *worker, void *call);
void stack_task_avx512(Worker *worker, void *call);

#endif
