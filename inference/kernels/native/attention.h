/* Paged attention: what a step is, where keys and values lie, and how the work is cut into items. */
#ifndef PARLEY_ATTENTION_H
#define PARLEY_ATTENTION_H

#include "native.h"

#include <stdatomic.h>

#define PAGE 16
/* Keys are reduced in splits of this many positions, whose results are combined in order. Splits
 * begin at multiples of it, so a query's arithmetic depends on its position alone. */
#define SPLIT 256
#define ATTENTION_ROWS 24 /* queries times heads that share keys: what keeps a core's registers busy */
/* The same where threads have enough of them to do: a prompt's attention took 0.95 to 1 times as long, with AVX2 0.94 to
 * 1.02, with the baseline's registers as long (Zen 5). */
#define MANY_ROWS 48
#define ENOUGH_ITEMS 8 /* for each thread */
/* The same with AMX: four tiles. With two a prompt of 4,000 tokens took 1.10 times as long, of 1,056 1.0 to 1.06 times */
#define TILED_ROWS 64
#define SCORE_STRIDE (SPLIT + PAGE) /* of a row's scores: not a power of two, for the cache's sake */

/* Keys and values in bfloat16 are rounded as they are written, and lie in pairs, of which the first has the lower
 * half of a word: a key's numbers (with a zero behind the last of an odd count), and the values of two positions. */
typedef struct Cache {
    void *keys;   /* [page][kv_head][key_dim][PAGE], or [page][kv_head][key_dim / 2][PAGE][2] */
    void *values; /* [page][kv_head][PAGE][value_dim], or [page][kv_head][PAGE / 2][value_dim][2]; latent: none */
    int64_t kv_heads, key_dim, value_dim;
    int64_t kind;    /* KIND_FLOAT32 or KIND_BFLOAT16: of keys and values */
    int64_t latent;  /* a value is the first numbers of its key: there are no values */
    int64_t rounded; /* in bfloat16: queries and weights are rounded, too, where the CPU multiplies it */
} Cache;

static inline int is_narrow(const Cache *cache) { return cache->kind == KIND_BFLOAT16; }
static inline int64_t number_bytes(const Cache *cache) { return is_narrow(cache) ? 2 : 4; }
static inline int64_t key_numbers(const Cache *cache) { return cache->key_dim + (is_narrow(cache) & cache->key_dim); }
/* Of a page whose values are read out of its keys; 0: they lie beside them. */
static inline int64_t turned_bytes(const Cache *cache) {
    return cache->latent ? PAGE * cache->value_dim * number_bytes(cache) : 0;
}
/* Of a rounded query: whole lines. */
static inline int64_t query_numbers(const Cache *cache) { return (cache->key_dim + 31) / 32 * 32; }

/* The tokens of piece i are positions [starts[i], stops[i]) of the sequence in slots[i]; the pieces'
 * tokens follow each other as rows. */
typedef struct Step {
    int64_t pieces, tokens;
    const int64_t *starts, *stops, *slots;
    const int32_t *table; /* [slot][table_stride]: a sequence's pages in order */
    int64_t table_stride;
    const int64_t *limits; /* [token]: from where on it sees nothing, rising in a piece; NULL: behind itself */
} Step;

typedef struct Attention {
    float scaling;
    float softcap;      /* 0: none */
    int64_t window;     /* how many of the newest tokens a token sees, itself among them; 0: all */
    int64_t chunk;      /* and none before its own chunk, which begin at multiples of so many; 0: one has all */
    const float *sinks; /* [head], or NULL: one more score each, whose share goes nowhere */
    const float *slopes; /* [head], or NULL: what a score loses by each token between query and key */
} Attention;

/* The first position that a token at another one sees. */
static inline int64_t first_seen(const Attention *how, int64_t position) {
    int64_t recent = how->window && position >= how->window ? position - how->window + 1 : 0;
    int64_t begin = how->chunk ? position - position % how->chunk : 0;
    return recent > begin ? recent : begin;
}

/* What happens to queries and keys between the linear and the attention. */
typedef struct Shaping {
    const float *cosines, *sines; /* [row][rotary_dim], or [position][rotary_dim]; NULL: no rotation */
    int64_t by_position;
    int64_t rotary_dim;           /* the first so many numbers of a head */
    int64_t interleaved;
    const float *query_norm, *key_norm;     /* NULL: none */
    int64_t query_norm_size, key_norm_size; /* a head's dim: each head for itself; else all heads, side by side */
    int64_t centred; /* 1: of each head, centred, whose weights, one head's or those of all, are followed by biases */
    int64_t late;    /* 1: of each head, once it is rotated */
    const float *query_scales; /* [position]: what queries are multiplied by, beside the scaling; NULL: nothing */
    float eps;
} Shaping;

/* A piece of one token, among those that read the same pages. */
typedef struct Member {
    int64_t piece, row, position;
    int64_t home;         /* the tile of its own, where its results are put together */
    const int32_t *pages; /* of the split that is looked at, while groups are sought */
} Member;

/* Of a piece: how many of its first splits it computes with others, and the tile of the rest. */
typedef struct Shared {
    int64_t splits, home;
} Shared;

/* Queries that attend together: consecutive ones of a piece to all that they see, but for splits that other tiles
 * compute; or one query each of several sequences (members), by position, to a split whose pages they share. */
typedef struct Tile {
    int64_t piece, row, queries, position; /* of the first of them */
    const int64_t *limits; /* of the queries; NULL: each sees up to itself */
    const int32_t *pages;
    const Member *members; /* NULL: a piece's */
    int64_t first, splits; /* those it computes, to the last one that a query sees */
    int64_t parts;    /* along the keys that this tile is cut into */
    int64_t partial;  /* where its partial results begin, in rows; -1: it has none */
    int64_t finished; /* where its counters begin, one for each kv head */
    int64_t wanted;   /* 0: nobody reads what its queries are given, of a call that trims */
} Tile;

/* A part of a tile for the key heads [head, head + heads): more than one only of a tile of one query. */
typedef struct Item {
    int64_t tile, part, head, heads;
} Item;

/* What a step's attention consists of: the same for all layers with the same heads. Its memory grows
 * to the largest step seen and stays. */
typedef struct AttentionPlan {
    Tile *tiles;
    Item *items;
    int64_t tile_count, item_count;
    int64_t queries;  /* per tile, at most */
    int64_t span;     /* splits per item */
    int64_t together; /* key heads per item, of a tile of one query */
    int64_t decoding; /* whether every piece is one token: then items write their own key and value */
    int64_t partial_rows, counters;
    Member *members;    /* of shared tiles, tile by tile */
    Member *candidates; /* pieces of one token, as long as others read the same pages */
    Shared *shared;     /* [pieces] */
    int64_t member_count;
    float *partials;           /* [partial_rows][value_dim + 2]: a split's sum, its maximum, its weight */
    _Atomic int32_t *finished; /* [counters]: parts done; the last one sets it to 0 again */
    float *scratch;            /* [thread][scratch_size] */
    int64_t scratch_size;
    int64_t tile_room, item_room, partial_room, finished_room, scratch_room;
    int64_t member_room, candidate_room, shared_room;
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
int attention_plan(AttentionPlan *plan, const Step *step, const Cache *cache, int64_t heads, const Library *library);
void attention_plan_free(AttentionPlan *plan);
/* Say which tiles are wanted: those with any of `count` rows, which rise, and those that others depend on. */
void attention_want(AttentionPlan *plan, const int64_t *rows, int64_t count);
/* Make the shared tiles, which come first, and say of each piece how many splits it shares. */
void attention_share(AttentionPlan *plan, const Step *step);
/* Members of shared tiles, at most. */
int64_t attention_members(const Step *step);

/* Inside a task: write the keys and values of a step's tokens, and attend; barriers included. `trims`: only the
 * queries of tiles that are wanted attend. */
void attention_baseline(Worker *worker, const AttentionCall *call, int trims);
void attention_avx2(Worker *worker, const AttentionCall *call, int trims);
void attention_avx512(Worker *worker, const AttentionCall *call, int trims);

#if defined(__x86_64__)
/* Attention with everything rounded (attention_bf16.c), for AVX-512 BF16; rows and pages as attention_split.inc.h
 * has them. Scores become weights in place: of a row's floats [0, n), the words [0, n) of the same memory are left. */
void round_query_avx512(const float *query, int64_t dim, uint16_t *rounded); /* whole lines, zeros at the end */
void score_rounded_avx512(const uint16_t *query, const Cache *cache, const void *const *keys,
                          const void *const *values, int64_t pages, float *score, int64_t rows);
float rounded_exponentials_avx512(float *score, int64_t from, int64_t to, float greatest); /* returns their sum */
void weigh_rounded_avx512(const float *weight, const Cache *cache, const void *const *pages, int64_t from, int64_t to,
                          float *sums, int64_t rows, const void *const *ahead);
#endif

/* The same by AMX (attention_amx.c), where it has tiles for a cache. Of more than AMX_ROWS rows all weights are given at
 * once, and sums are `fresh`: they begin. */
#if defined(HAS_AMX)
int attention_has_tiles(const Cache *cache);
void score_rounded_amx(const uint16_t *query, const Cache *cache, const void *const *keys, const void *const *values,
                       int64_t pages, float *score, int64_t rows);
/* Of a row's rounded weights, whole pages [from, to), those outside of [first, last) are made zeros. */
void hide_weights(float *weight, int64_t first, int64_t last, int64_t from, int64_t to);
void weigh_rounded_amx(const float *weight, const Cache *cache, const void *const *pages, int64_t from, int64_t to,
                       float *sums, int64_t rows, const void *const *ahead, int fresh);
#define score_tiles score_rounded_amx
static inline int attends_by_tiles(const Library *library, const Cache *cache) {
    return library->amx && attention_has_tiles(cache);
}
#else
#define score_tiles NULL
static inline int attends_by_tiles(const Library *library, const Cache *cache) {
    (void)library;
    (void)cache;
    return 0;
}
#endif

#endif
