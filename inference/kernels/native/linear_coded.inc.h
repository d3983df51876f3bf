/* The template of bfloat16 in 12 bits (linear.h): a quad of a panel turned into the words of bfloat16's. */

#define PAIR_VECTORS (PANEL / LANES) /* of two k of a panel, in words */

typedef uint8_t vb __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * LANES), may_alias));

/* Bytes of a and b by turns, of the lower or the upper half of each 16: a's are the lower bytes of words. And upper
 * bytes of codes, from a table for each 16 where there is an instruction for it. */
#if NATIVE_ISA == 2
INLINE vi interleave_low(vi a, vi b) { return (vi)_mm512_unpacklo_epi8((__m512i)a, (__m512i)b); }
INLINE vi interleave_high(vi a, vi b) { return (vi)_mm512_unpackhi_epi8((__m512i)a, (__m512i)b); }
INLINE vi upper_bytes(vi codes, vi table) { return (vi)_mm512_shuffle_epi8((__m512i)table, (__m512i)codes); }
#elif NATIVE_ISA == 1
INLINE vi interleave_low(vi a, vi b) { return (vi)_mm256_unpacklo_epi8((__m256i)a, (__m256i)b); }
INLINE vi interleave_high(vi a, vi b) { return (vi)_mm256_unpackhi_epi8((__m256i)a, (__m256i)b); }
INLINE vi upper_bytes(vi codes, vi table) { return (vi)_mm256_shuffle_epi8((__m256i)table, (__m256i)codes); }
#else
INLINE vi interleave_low(vi a, vi b) {
    return (vi)__builtin_shuffle((vb)a, (vb)b, (vb){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
INLINE vi interleave_high(vi a, vi b) {
    return (vi)__builtin_shuffle((vb)a, (vb)b, (vb){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
#if defined(NATIVE_NEON)
INLINE vi upper_bytes(vi codes, vi table) { return (vi)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)codes); }
#else
INLINE vi upper_bytes(vi codes, vi table) {
    return (codes & viset1(0x08080808)) << 4 | (vi)((vb)(codes & viset1(0x07070707)) + (uint8_t)table[0]);
}
#endif
#endif

/* The upper bytes of a panel's codes, again for each 16 bytes. */
INLINE vi table_of(int base) {
    const vi half = viset1(base / 2 * 0x01010101);
    vi table;
    UNROLL for (uint32_t i = 0; i < LANES; i++)
        table[i] = (int)(0x03020100 + i % 2 * 0x04040404 + i / 2 % 2 * 0x80808080);
    return (vi)((vb)table + (vb)half);
}

/* Vectors of a quad's words: `vectors` of its first two k, from the two on whose line's vector is `line`, and the same
 * of the others; without the exceptions. */
INLINE void decode(const int vectors, const char *quad, int line, vi table, vi *words) {
    const vi nibble = viset1(0x0f0f0f0f);
    UNROLL for (int i = 0; i < vectors / 2; i++) {
        const char *at = quad + (line + i) * (int)sizeof(vi);
        vi a = viload(at), b = viload(at + 64), codes = viload(at + 128);
        vi of_a = upper_bytes(codes & nibble, table), of_b = upper_bytes((vi)((vu)codes >> 4) & nibble, table);
        words[2 * i] = interleave_low(a, of_a);
        words[2 * i + 1] = interleave_high(a, of_a);
        words[vectors + 2 * i] = interleave_low(b, of_b);
        words[vectors + 2 * i + 1] = interleave_high(b, of_b);
    }
}

/* Put a quad's exceptions in; return the next quad's. */
INLINE const Exception *correct(const int vectors, const Exception *exception, int64_t quad, int from, vi *words) {
    uint16_t corrected[QUAD_WEIGHTS];
    const size_t bytes = 2 * (size_t)vectors * sizeof *words;
    memcpy(corrected, words, bytes);
    for (; exception->at / QUAD_WEIGHTS == quad; exception++) {
        int place = exception->at % QUAD_WEIGHTS, word = place % (2 * PANEL) - 2 * LANES * from;
        if (word < 0 || word >= 2 * LANES * vectors) continue;
        corrected[place / (2 * PANEL) * 2 * LANES * vectors + word] = exception->bits;
    }
    memcpy(words, corrected, bytes);
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

/* Decoding takes two operations for a vector of words, which is less than waiting for four bits more. */
INLINE void add_coded(const int kind, const int rows, const int vectors, const Block *b,
                      Sum sums[MOST_ROWS][8]) {
    const Exception *exception = b->exceptions;
    const vi table = table_of(b->base);
    const int from = b->column / LANES;
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += QUAD, w += QUAD_BYTES) {
        vi words[2 * PAIR_VECTORS];
        fetch_quad(vectors, b, w);
        decode(vectors, w, from / 2, table, words);
        if (__builtin_expect(exception->at / QUAD_WEIGHTS == (b->from + k) / QUAD, 0))
            exception = correct(vectors, exception, (b->from + k) / QUAD, from, words);
        int64_t left = b->k - k;
        if (left >= QUAD) /* a constant: without branches */
            add_words(kind, rows, vectors, b, k, QUAD, words, sums);
        else
            add_words(kind, rows, vectors, b, k, left, words, sums);
    }
}
