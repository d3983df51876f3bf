/* The template of weights in 8 bits (native.h), for vectors of one ISA: whole numbers, or FP8.
 *
 * E4M3 and E5M2 are widened by way of float16, which is E5M2 with more bits behind, and E4M3 with one more of the
 * exponent: so it is taken for 2^-8 times the number, and scales have the rest (native.h). Denormals come right by
 * that; by float32's bits they would be denormals, too, which tasks take for zero (pool.c). */
#include "linear_groups.inc.h"

enum { WHOLE = NUMBERS_WHOLE, E4M3 = NUMBERS_E4M3, E5M2 = NUMBERS_E5M2 };

#define FORMS 3
#define DEFINE_FORMS(rows) \
    DEFINE_FORM(whole, WHOLE, rows) DEFINE_FORM(e4m3, E4M3, rows) DEFINE_FORM(e5m2, E5M2, rows)
#define FORM_TABLES FORM_TABLE(whole, WHOLE), FORM_TABLE(e4m3, E4M3), FORM_TABLE(e5m2, E5M2)
#define CODES_STEP PANEL /* bytes of a panel's k */
#define CODES_COLUMN 1   /* and of an output's code */
#define AT_ONCE 4        /* k */

#define OF_E4M3 (short)0xbf80 /* of a half: all but the exponent's first bit, where the sign is extended to */

/* Of two vectors' codes, side by side. With AVX-512 by 256 bits: to take vectors apart costs more (Zen 4, one row: 3 to
 * 9 %), and so did other ways to E4M3: float32's bits times a power of two 4 %, the lesser of two numbers 25 %. */
#if NATIVE_ISA == 2
INLINE vf level(const int form, __m128i codes) {
    if (form == WHOLE) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    if (form == E5M2) return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16(OF_E4M3)));
}

INLINE void two_levels(const int form, const char *w, vf *levels) {
    UNROLL for (int v = 0; v < 2; v++) levels[v] = level(form, _mm_loadu_si128((const __m128i *)w + v));
}
#elif NATIVE_ISA == 1
INLINE void two_levels(const int form, const char *w, vf *levels) {
    if (form == WHOLE) {
        UNROLL for (int v = 0; v < 2; v++)
            levels[v] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(w + v * LANES))));
        return;
    }
    const __m128i codes = _mm_loadu_si128((const __m128i *)w);
    const __m256i halves = form == E5M2 ? _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8)
                                        : _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                                           _mm256_set1_epi16(OF_E4M3));
    levels[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    levels[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}
#else
typedef int8_t Codes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE void two_levels(const int form, const char *w, vf *levels) {
    UNROLL for (int v = 0; v < 2; v++) {
        const vi codes = __builtin_convertvector(*(const Codes *)(w + v * LANES), vi);
        const vi mask = viset1(form == E5M2 ? 0xff00 : OF_E4M3 & 0xffff);
        levels[v] = form == WHOLE ? vtofloat(codes) : vhalf(codes << (form == E5M2 ? 8 : 7) & mask);
    }
}
#endif

/* Of one k; `kept`: where its levels go, or NULL. */
INLINE void add_codes(const int form, const int rows, const int vectors, const float *x, const float *lower,
                      int64_t stride, const char *w, float *kept, vf sums[MOST_ROWS][8]) {
    vf levels[8];
    UNROLL for (int v = 0; v < vectors; v += 2) two_levels(form, w + v * LANES, levels + v);
    if (kept)
        UNROLL for (int v = 0; v < vectors; v++) vstore(kept + v * LANES, levels[v]);
    add_levels(rows, vectors, x, lower, stride, levels, sums);
}

/* One group. The compiler is kept from multiplying the stride out, to an offset for each row. */
INLINE void add_group(const int form, const int keeps, const int rows, const int vectors, const Groups *g, int64_t from,
                      int64_t left, const float *shifts, vf sums[MOST_ROWS][8]) {
    const float *x = g->x + from, *lower = x + (rows + 1) / 2 * g->x_stride;
    const char *w = g->w + from * PANEL;
    int64_t stride = g->x_stride;
    float *kept = keeps ? g->levels : NULL;
    (void)shifts;
    for (; left >= AT_ONCE; left -= AT_ONCE, x += AT_ONCE, lower += AT_ONCE, w += AT_ONCE * PANEL) {
        __builtin_prefetch(w + CODES_AHEAD);
        __builtin_prefetch(w + CODES_AHEAD + 64);
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
            __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
            add_codes(form, rows, vectors, x + i, lower + i, stride, w + i * PANEL, kept, sums);
            if (keeps) kept += PANEL;
        }
    }
    for (; left > 0; left--, x++, lower++, w += PANEL) {
        add_codes(form, rows, vectors, x, lower, stride, w, kept, sums);
        if (keeps) kept += PANEL;
    }
}

INLINE int form_of(const Linear *linear) { return (int)linear->numbers; }

#include "linear_group_blocks.inc.h"

#define DEFINE_BITS8_LINEAR(name)                                                        \
    void name(const Tile *t) {                                                           \
        for (int64_t panel = t->panel_from; panel < t->panel_to; panel++)                \
            multiply_panel(t, panel, t->linear->scales); /* there are no shifts to read */ \
    }
