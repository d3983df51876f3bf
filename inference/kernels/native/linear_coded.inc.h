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

/* All words of a quad but the exceptions. */
INLINE void decode(const char *quad, vi base, vi words[2 * PAIR_VECTORS]) {
    UNROLL for (int i = 0; i < LINE_VECTORS; i++) {
        const char *at = quad + i * (int)sizeof(vi);
        vi a = viload(at), b = viload(at + 64), shared = viload(at + 128), turned = turn(shared);
        words[i] = based(interleave_low(a, shared), base);
        words[LINE_VECTORS + i] = based(interleave_high(a, shared), base);
        words[PAIR_VECTORS + i] = based(interleave_low(b, turned), base);
        words[PAIR_VECTORS + LINE_VECTORS + i] = based(interleave_high(b, turned), base);
    }
}

/* Put a quad's exceptions in; return the next quad's. */
INLINE const Exception *correct(const Exception *exception, int64_t quad, vi words[2 * PAIR_VECTORS]) {
    uint16_t corrected[QUAD_WEIGHTS];
    memcpy(corrected, words, sizeof corrected);
    for (; exception->at / QUAD_WEIGHTS == quad; exception++)
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
        if (left > 2) add_pair(rows, vectors, b, k + 2, words + PAIR_VECTORS, sums);
        return;
    }
#endif
    (void)kind;
    UNROLL for (int i = 0; i < QUAD; i++)
        if (i < left) add_widened(rows, vectors, b, k + i, words + i / 2 * PAIR_VECTORS, i % 2, sums);
}

/* Decoding is a load and three operations for a vector of weights, which is less than waiting for four bits more. */
INLINE void add_coded(const int kind, const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const Exception *exception = b->exceptions;
    const vi base = vsplat16((int16_t)(b->base << 7));
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += QUAD, w += QUAD_BYTES) {
        vi words[2 * PAIR_VECTORS];
        fetch_ahead(3, b, w);
        prefetch(w);
        __builtin_prefetch(w + AHEAD + 128);
        decode(w, base, words);
        if (__builtin_expect(exception->at / QUAD_WEIGHTS == (b->from + k) / QUAD, 0))
            exception = correct(exception, (b->from + k) / QUAD, words);
        int64_t left = b->k - k;
        if (left >= QUAD) /* a constant: without branches */
            add_words(kind, rows, vectors, b, k, QUAD, words + b->column / LANES, sums);
        else
            add_words(kind, rows, vectors, b, k, left, words + b->column / LANES, sums);
    }
}
