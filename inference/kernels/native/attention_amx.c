/* Scores and weighted values of bfloat16 by AMX: up to 16 rows at once, against four pages of keys, or of one page's
 * values 64 numbers.
 *
 * Pages lie as tiles want them. A row's score is summed by 32 numbers of its head at a time. Its values are summed page
 * by page, whole ones: what it doesn't see has the weight zero, which changes no sum, and of a page whose end nobody sees
 * that is read as zeros, whatever lies there. */
#include "attention.h"

#if defined(HAS_AMX)
#include "amx.h"

#include <string.h>

#pragma GCC target("amx-tile,amx-bf16")
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define TOGETHER 4       /* sums: of pages, or of 16 numbers of a value */
#define KEY_NUMBERS 32   /* that a tile has of each key */
#define VALUE_NUMBERS 16 /* of each value */
#define MOST_VALUE_NUMBERS 512

int attention_has_tiles(const Cache *cache) {
    return is_narrow(cache) && cache->rounded && cache->key_dim % KEY_NUMBERS == 0 &&
           cache->value_dim % VALUE_NUMBERS == 0 && cache->value_dim <= MOST_VALUE_NUMBERS;
}

INLINE void fetch(const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i, 0, 2);
}

/* Tiles are named by constants. Addresses stand in parentheses: some of GCC's headers cast what is named first. */
#define EACH(count, action)               \
    do {                                  \
        action(0);                        \
        if ((count) > 1) { action(1); }   \
        if ((count) > 2) { action(2); }   \
        if ((count) > 3) { action(3); }   \
    } while (0)

INLINE void score_pages(const char *query, int64_t stride, const Cache *cache, const void *const *keys, float *score,
                        const int pages) {
#define ZERO(i) _tile_zero(i)
#define MULTIPLY(i)                                                      \
    _tile_loadd(6, ((const char *)keys[i] + d * 2 * PAGE), AMX_BYTES); \
    _tile_dpbf16ps(i, 4, 6)
#define STORE(i) _tile_stored(i, (score + (i) * PAGE), SCORE_STRIDE * sizeof(float))
    EACH(pages, ZERO);
    for (int64_t d = 0; d < cache->key_dim; d += KEY_NUMBERS) {
        _tile_loadd(4, (query + 2 * d), stride);
        EACH(pages, MULTIPLY);
    }
    EACH(pages, STORE);
#undef ZERO
#undef MULTIPLY
#undef STORE
}

/* As many rows as a tile has, but all blocks of them alike, so that its shape needn't change: of the last block some
 * have been computed before, to the same bits. */
void score_rounded_amx(const uint16_t *query, const Cache *cache, const void *const *keys, const void *const *values,
                       int64_t pages, float *score, int64_t rows) {
    const int64_t numbers = query_numbers(cache), stride = numbers * 2, blocks = (rows + AMX_ROWS - 1) / AMX_ROWS;
    const int64_t high = (rows + blocks - 1) / blocks;
    amx_memory_is_written();
    amx_shape_attention(high);
    for (int64_t p = 0; values && p < pages; p++) fetch(values[p], cache->value_dim * 2 * PAGE);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t row = block * high + high <= rows ? block * high : rows - high, page = 0;
        const char *q = (const char *)(query + row * numbers);
        float *s = score + row * SCORE_STRIDE;
        for (; page + TOGETHER <= pages; page += TOGETHER)
            score_pages(q, stride, cache, keys + page, s + page * PAGE, TOGETHER);
        for (; page < pages; page++) score_pages(q, stride, cache, keys + page, s + page * PAGE, 1);
    }
}

void hide_weights(float *weight, int64_t first, int64_t last, int64_t from, int64_t to) {
    uint16_t *words = (uint16_t *)weight;
    if (last < first) last = first;
    memset(words + from, 0, (size_t)(first - from) * sizeof *words);
    memset(words + last, 0, (size_t)(to - last) * sizeof *words);
}

/* A page's values with zeros in place of those that aren't of positions [first, last). */
static const void *pad_page(const void *page, int64_t first, int64_t last, int64_t dim, uint32_t *padded) {
    const uint32_t *pairs = page;
    for (int64_t pair = 0; pair < PAGE / 2; pair++) {
        uint32_t mask = 0;
        if (2 * pair >= first && 2 * pair < last) mask |= 0xffff;
        if (2 * pair + 1 >= first && 2 * pair + 1 < last) mask |= 0xffff0000;
        for (int64_t d = pair * dim; d < (pair + 1) * dim; d++) padded[d] = pairs[d] & mask;
    }
    return padded;
}

typedef struct Weighing {
    const float *weight;
    const void *const *pages;
    const void *first_page, *last_page; /* in place of those */
    int64_t from, to;                   /* pages */
    int64_t dim;
    float *sums;
    int fresh; /* sums begin here, whatever lies there */
} Weighing;

INLINE const char *page_of(const Weighing *w, int64_t page) {
    if (page == w->from) return w->first_page;
    return page + 1 == w->to ? w->last_page : w->pages[page];
}

INLINE void weigh_numbers(const Weighing *w, int64_t d, const int count) {
#define BEGIN(i)             \
    if (w->fresh)            \
        _tile_zero(i);       \
    else                     \
        _tile_loadd(i, (w->sums + d + (i) * VALUE_NUMBERS), (w->dim + 2) * sizeof(float))
#define MULTIPLY(i)                                                \
    _tile_loadd(7, (value + (i) * AMX_BYTES), w->dim * sizeof(float)); \
    _tile_dpbf16ps(i, 5, 7)
#define STORE(i) _tile_stored(i, (w->sums + d + (i) * VALUE_NUMBERS), (w->dim + 2) * sizeof(float))
    EACH(count, BEGIN);
    for (int64_t page = w->from; page < w->to; page++) {
        const char *value = page_of(w, page) + d * (int64_t)sizeof(float);
        _tile_loadd(5, ((const uint16_t *)w->weight + page * PAGE), SCORE_STRIDE * sizeof(float));
        EACH(count, MULTIPLY);
    }
    EACH(count, STORE);
#undef BEGIN
#undef MULTIPLY
#undef STORE
}

void weigh_rounded_amx(const float *weight, const Cache *cache, const void *const *pages, int64_t from, int64_t to,
                       float *sums, int64_t rows, const void *const *ahead, int fresh) {
    const int64_t dim = cache->value_dim, blocks = (rows + AMX_ROWS - 1) / AMX_ROWS, high = (rows + blocks - 1) / blocks;
    const int64_t end = (to + PAGE - 1) / PAGE;
    uint32_t padded[2][PAGE / 2 * MOST_VALUE_NUMBERS] __attribute__((aligned(64)));
    if (from >= to) return;
    const int64_t begin = from / PAGE, last = to - (end - 1) * PAGE;
    Weighing w = {.pages = pages, .from = begin, .to = end, .dim = dim, .fresh = fresh};
    w.first_page = pages[begin];
    w.last_page = pages[end - 1];
    if (last < PAGE) w.last_page = pad_page(w.last_page, 0, last, dim, padded[1]);
    if (from % PAGE || (begin + 1 == end && last < PAGE))
        w.first_page = pad_page(w.first_page, from % PAGE, begin + 1 == end ? last : PAGE, dim, padded[0]);
    amx_memory_is_written();
    amx_shape_attention(high);
    for (int64_t page = w.from; ahead && page < end; page++) fetch(ahead[page], key_numbers(cache) * 2 * PAGE);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t row = block * high + high <= rows ? block * high : rows - high;
        w.weight = weight + row * SCORE_STRIDE;
        w.sums = sums + row * (dim + 2);
        int64_t d = 0;
        for (; d + TOGETHER * VALUE_NUMBERS <= dim; d += TOGETHER * VALUE_NUMBERS) weigh_numbers(&w, d, TOGETHER);
        for (; d < dim; d += VALUE_NUMBERS) weigh_numbers(&w, d, 1);
    }
}
#endif
