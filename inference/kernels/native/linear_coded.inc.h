/* The template of bfloat16 in 12 bits (linear.h): a quad of a panel turned into the words of bfloat16's. */

#define PAIR_VECTORS (PANEL / LANES)    /* of two k of a panel, in words */
#define LINE_VECTORS (PAIR_VECTORS / 2) /* of a line */
#define SIGN_CODE_MANTISSA (-0x7801)    /* bits 15 and 10 to 0 */

typedef uint8_t vb __attribute__((vector_size(4 * LANES), may_alias));
typedef int16_t vh __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * LANES), may_alias));

/* Bytes of a and b by turns, of the lower or the upper half of each 16: a's are the lower bytes of words. */
#if NATIVE_ISA == 2
INLINE vi interleave_low(vi a, vi b) { return (vi)_mm512_unpacklo_epi8((__m512i)a, (__m512i)b); }
INLINE vi interleave_high(vi a, vi b) { return (vi)_mm512_unpackhi_epi8((__m512i)a, (__m512i)b); }
INLINE vi turn(vi v) { return (vi)_mm512_rol_epi32((__m512i)v, 4); }
#elif NATIVE_ISA == 1
INLINE vi interleave_low(vi a, vi b) { return (vi)_mm256_unpacklo_epi8((__m256i)a, (__m256i)b); }
INLINE vi interleave_high(vi a, vi b) { return (vi)_mm256_unpackhi_epi8((__m256i)a, (__m256i)b); }
INLINE vi turn(vi v) { return v << 4 | (vi)((vu)v >> 28); }
#else
INLINE vi interleave_low(vi a, vi b) {
    return (vi)__builtin_shuffle((vb)a, (vb)b, (vb){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
INLINE vi interleave_high(vi a, vi b) {
    return (vi)__builtin_shuffle((vb)a, (vb)b, (vb){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
INLINE vi turn(vi v) { return v << 4 | (vi)((vu)v >> 28); }
#endif

INLINE vi vsplat16(int16_t x) { return (vi)(x - (vh){0}); }

INLINE vi based(vi words, vi base) { return (vi)((vh)(words & vsplat16(SIGN_CODE_MANTISSA)) + (vh)base); }

/* The words of a quad but the exceptions, of `vectors` vectors of columns from `column` on: of two k, then of the
 * others. The lower halves of the lines have the first columns. */
INLINE void decode(const char *quad, vi base, const int vectors, const int column, vi *words) {
    UNROLL for (int v = 0; v < vectors; v++) {
        const int at = column / LANES + v, upper = at >= LINE_VECTORS;
        const char *line = quad + at % LINE_VECTORS * (int)sizeof(vi);
        vi a = viload(line), b = viload(line + 64), shared = viload(line + 128), turned = turn(shared);
        words[v] = based(upper ? interleave_high(a, shared) : interleave_low(a, shared), base);
        words[vectors + v] = based(upper ? interleave_high(b, turned) : interleave_low(b, turned), base);
    }
}

/* All words of a quad with its exceptions; returns the next quad's. Apart, so that words stay in registers else. */
static __attribute__((noinline, unused)) const Exception *
decode_corrected(const char *quad, int base, const Exception *exception, int64_t number, vi words[2 * PAIR_VECTORS]) {
    uint16_t corrected[QUAD_WEIGHTS];
    decode(quad, vsplat16((int16_t)(base << 7)), PAIR_VECTORS, 0, words);
    memcpy(corrected, words, sizeof corrected);
    for (; exception->at / QUAD_WEIGHTS == number; exception++)
        corrected[exception->at % QUAD_WEIGHTS] = exception->bits;
    memcpy(words, corrected, sizeof corrected);
    return exception;
}

/* The products of four k, or of the `left` that there are, in the order of bfloat16's panel. */
INLINE void add_words(const int kind, const int rows, const int vectors, const Block *b, int64_t k, int64_t left,
                      const vi *words, Sum sums[MOST_ROWS][8]) {
#if defined(NATIVE_BF16)
    if (is_rounded(kind)) {
        add_pair(rows, vectors, b, k, words, sums);
        if (left > 2) add_pair(rows, vectors, b, k + 2, words + vectors, sums);
        return;
    }
#endif
    (void)kind;
    UNROLL for (int i = 0; i < QUAD; i++)
        if (i < left) add_widened(rows, vectors, b, k + i, words + i / 2 * vectors, i % 2, sums);
}

/* Decoding is a load and three operations for a vector of weights, which is less than waiting for four bits more. */
INLINE void add_coded(const int kind, const int rows, const int vectors, const int column, const Block *b,
                      Sum sums[MOST_ROWS][8]) {
    const Exception *exception = b->exceptions;
    const vi base = vsplat16((int16_t)(b->base << 7));
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += QUAD, w += QUAD_BYTES) {
        vi words[2 * PAIR_VECTORS];
        const int64_t quad = (b->from + k) / QUAD;
        fetch_ahead(3, b, w);
        prefetch(w);
        __builtin_prefetch(w + AHEAD + 128);
        if (__builtin_expect(exception->at / QUAD_WEIGHTS == quad, 0)) {
            vi all[2 * PAIR_VECTORS];
            exception = decode_corrected(w, b->base, exception, quad, all);
            UNROLL for (int v = 0; v < vectors; v++) {
                words[v] = all[column / LANES + v];
                words[vectors + v] = all[PAIR_VECTORS + column / LANES + v];
            }
        } else
            decode(w, base, vectors, column, words);
        int64_t left = b->k - k;
        if (left >= QUAD) /* a constant: without branches */
            add_words(kind, rows, vectors, b, k, QUAD, words, sums);
        else
            add_words(kind, rows, vectors, b, k, left, words, sums);
    }
}
