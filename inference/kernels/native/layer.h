/* All decoder layers of a step in one task. */
#ifndef PARLEY_LAYER_H
#define PARLEY_LAYER_H

#include "attention.h"

enum Activation { SILU = 0, GELU_TANH = 1, GELU = 2 };

/* A norm is RMS, with the weights of its module (1 + w where the model says so), or absent: NULL. */
typedef struct Layer {
    const Linear *qkv, *out, *gate_up, *down;
    const float *input_norm, *mid_norm;     /* of what attention and the MLP read */
    const float *attention_norm, *mlp_norm; /* of what they give */
    const float *query_norm, *key_norm;
    int64_t query_norm_size, key_norm_size; /* head_dim, or that of all heads together */
    int64_t rotary;                         /* which of the step's rotary embeddings; -1: none */
    Attention how;
    Cache cache;
} Layer;

typedef struct Shape {
    int64_t hidden, heads, kv_heads, head_dim, inner, rotary_dim, interleaved, activation;
    float eps, residual; /* residual: what attention and the MLP give is multiplied by it */
} Shape;

/* What the layers of one model need; the buffers grow to the largest step seen and stay. */
typedef struct Stack {
    Shape shape;
    const Layer *layers;
    int64_t count;
    AttentionPlan plan;
    float *hidden[2];  /* [row][hidden], taken in turns: one is read while the other is written */
    float *normed;     /* [row][hidden] */
    float *qkv;        /* [row][(heads + 2 kv_heads) head_dim] */
    float *attended;   /* [row][heads * head_dim] */
    float *given;      /* [row][hidden]: what attention or the MLP gave */
    float *gate_up;    /* [row][2 inner] */
    float *inner;      /* [row][inner] */
    void *prepared;    /* inputs of linears that need it */
    float *own;        /* [thread][own_size]: inputs that each thread makes for itself, of few rows */
    void *memory;
    int64_t own_size, room;
} Stack;

typedef struct StackCall {
    Stack *stack;
    const Library *library;
    const Step *step;
    const float *const *cosines, *const *sines; /* of each rotary embedding: [row][rotary_dim] */
    const float *in;
    float *out;
    int64_t rows;
    int few; /* rows are so few that every thread makes the linears' inputs for itself, which saves barriers */
} StackCall;

void stack_task_baseline(Worker *worker, void *call);
void stack_task_avx2(Worker *worker, void *call);
void stack_task_avx512(Worker *worker, void *call);

#endif
