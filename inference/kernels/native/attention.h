/* Paged attention: what a step is, where keys and values lie, and how the work is cut into items. */
#ifndef PARLEY_ATTENTION_H
#define PARLEY_ATTENTION_H

#include "native.h"

#include <stdatomic.h>

#define PAGE 16
/* Keys are reduced in splits of this many positions, whose results are combined in order. Splits
 * begin at multiples of it, so a query's arithmetic depends on its position alone. */
#define SPLIT 256
#define SCORE_STRIDE (SPLIT + PAGE) /* of a row's scores: not a power of two, for the cache's sake */

/* Keys and values in bfloat16 are rounded as they are written; what is computed with them is float32. */
typedef struct Cache {
    void *keys;   /* [page][kv_head][key_dim][PAGE] */
    void *values; /* [page][kv_head][PAGE][value_dim] */
    int64_t kv_heads, key_dim, value_dim;
    int64_t kind; /* KIND_FLOAT32 or KIND_BFLOAT16: of keys and values */
} Cache;

static inline int is_narrow(const Cache *cache) { return cache->kind == KIND_BFLOAT16; }
static inline int64_t number_bytes(const Cache *cache) { return is_narrow(cache) ? 2 : 4; }

/* The tokens of piece i are positions [starts[i], stops[i]) of the sequence in slots[i]; the pieces'
 * tokens follow each other as rows. */
typedef struct Step {
    int64_t pieces, tokens;
    const int64_t *starts, *stops, *slots;
    const int32_t *table; /* [slot][table_stride]: a sequence's pages in order */
    int64_t table_stride;
} Step;

typedef struct Attention {
    float scaling;
    float softcap;      /* 0: none */
    int64_t window;     /* how many of the newest tokens a token sees, itself among them; 0: all */
    const float *sinks; /* [head], or NULL: one more score each, whose share goes nowhere */
} Attention;

/* What happens to queries and keys between the linear and the attention. */
typedef struct Shaping {
    const float *cosines, *sines; /* [row][rotary_dim], or [position][rotary_dim]; NULL: no rotation */
    int64_t by_position;
    int64_t rotary_dim;           /* the first so many numbers of a head */
    int64_t interleaved;
    const float *query_norm, *key_norm;     /* NULL: none */
    int64_t query_norm_size, key_norm_size; /* a head's dim: each head for itself; else all heads, side by side */
    float eps;
} Shaping;

/* Consecutive queries of one piece, which attend together. */
typedef struct Tile {
    int64_t row, queries, position; /* of the first of them */
    const int32_t *pages;
    int64_t parts;    /* items per kv head that this tile is cut into */
    int64_t partial;  /* where its partial results begin, in rows; -1: it has none */
    int64_t finished; /* where its counters begin, one for each kv head */
} Tile;

typedef struct Item {
    int64_t tile, part;
} Item;

/* What a step's attention consists of: the same for all layers with the same heads. Its memory grows
 * to the largest step seen and stays. */
typedef struct AttentionPlan {
    Tile *tiles;
    Item *items;
    int64_t tile_count, item_count;
    int64_t queries;  /* per tile, at most */
    int64_t span;     /* splits per item */
    int64_t decoding; /* whether every piece is one token: then items write their own key and value */
    int64_t partial_rows, counters;
    float *partials;           /* [partial_rows][value_dim + 2]: a split's sum, its maximum, its weight */
    _Atomic int32_t *finished; /* [counters]: parts done; the last one sets it to 0 again */
    float *scratch;            /* [thread][scratch_size] */
    int64_t scratch_size;
    int64_t tile_room, item_room, partial_room, finished_room, scratch_room;
} AttentionPlan;

/* [row][head][dim]: the numbers of a head follow each other; strides are in floats. */
typedef struct Heads {
    const float *first;
    int64_t row_stride, head_stride;
} Heads;

/* One layer's attention in a step. */
typedef struct AttentionCall {
    Heads query, key, value;
    float *out; /* [row][head][value_dim] */
    int64_t heads;
    Cache cache;
    Attention how;
    Shaping shaping;
    const Step *step;
    AttentionPlan *plan;
} AttentionCall;

/* Cut a step for `heads` query heads over such a cache. Returns 0, or -1 if there is no memory. */
int attention_plan(AttentionPlan *plan, const Step *step, const Cache *cache, int64_t heads, int32_t threads);
void attention_plan_free(AttentionPlan *plan);

/* Inside a task: write the keys and values of a step's tokens, and attend; barriers included. */
void attention_baseline(Worker *worker, const AttentionCall *call);
void attention_avx2(Worker *worker, const AttentionCall *call);
void attention_avx512(Worker *worker, const AttentionCall *call);

#endif
