/* The template of int8 without VPDPBUSD. */

#if NATIVE_ISA == 1
/* Inputs are there as they are, and their magnitudes, four by four. The weights get the inputs' signs, so that two
 * products fit int16. With weights widened to int16 as below it took up to a quarter longer (Zen 3): these have as many
 * operations for each product, but more for each weight, and one row less in the registers. */
INLINE void add_int8(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t k = 0; k < b->k; k += 4, w += 4 * PANEL) {
        __m256i raw[8];
        fetch_share(vectors, b, w);
        UNROLL for (int v = 0; v < vectors; v++) raw[v] = (__m256i)viload(w + 4 * v * LANES);
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *x = (const int32_t *)(row_of(b->x, b->x_stride, m) + 2 * k);
            __m256i magnitudes = (__m256i)viset1(x[0]), signs = (__m256i)viset1(x[1]);
            UNROLL for (int v = 0; v < vectors; v++) {
                __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(raw[v], signs));
                sums[m][v].i += (vi)_mm256_madd_epi16(pairs, ones);
            }
        }
    }
}
#else
/* Sums of products of neighbours, of int16 into int32. */
INLINE vi multiply_pairs(vi a, vi b) {
#if NATIVE_ISA == 2
    return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__x86_64__)
    return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* The four bytes of a lane as int16: the even ones, the odd ones. Inputs are prepared in that order. */
typedef int16_t vh __attribute__((vector_size(4 * LANES), may_alias));

INLINE vi even_bytes(vi v) { return (vi)((vh)((vh)v << 8) >> 8); }
INLINE vi odd_bytes(vi v) { return (vi)((vh)v >> 8); }

INLINE void add_int8(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += 4, w += 4 * PANEL) {
        vi even[8], odd[8];
        UNROLL for (int v = 0; v < vectors; v++) {
            vi raw = viload(w + 4 * v * LANES);
            even[v] = even_bytes(raw);
            odd[v] = odd_bytes(raw);
        }
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *x = (const int32_t *)(row_of(b->x, b->x_stride, m) + 2 * k);
            UNROLL for (int v = 0; v < vectors; v++)
                sums[m][v].i += multiply_pairs(even[v], viset1(x[0])) + multiply_pairs(odd[v], viset1(x[1]));
        }
    }
}
#endif
