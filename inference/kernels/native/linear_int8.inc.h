/* The template of int8 without VPDPBUSD; with SDOT at its end. */

#if NATIVE_ISA == 1
/* By Winograd's inner product (1968): x0 w0 + x1 w1 = (x0 + w1) (x1 + w0) - x0 x1 - w0 w1, of which what is subtracted
 * is summed once for each row of the inputs and of the weights. So two products take one multiplication and two
 * additions, of which CPUs do more at a time. Beside products of bytes (VPMADDUBSW), for which the weights took the
 * inputs' signs, that are as many instructions: three to eight rows take 7 to 9 % less time, 32 and more 12 to 16 % less,
 * and one row, whose weights must be widened, 1 to 4 % more (Zen 1, medians). int16 without the trick took as long as
 * bytes did.
 *
 * Inputs lie as int16 less 128, of every four the even ones first; weights get the 128 that makes the upper bits of
 * their bytes zeros. */
typedef struct Halves {
    __m256i even, odd;
} Halves;

INLINE Halves halves_of(const char *w) {
    const __m256i bytes = _mm256_xor_si256((__m256i)viload(w), _mm256_set1_epi8(-128));
    return (Halves){_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
}

INLINE vi multiply_halves(__m256i even, __m256i odd, Halves w) {
    return (vi)_mm256_madd_epi16(_mm256_add_epi16(even, w.odd), _mm256_add_epi16(odd, w.even));
}

INLINE void add_int8(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += 4, w += 4 * PANEL) {
        __m256i even[MOST_ROWS], odd[MOST_ROWS];
        fetch_share(vectors, b, w);
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *x = (const int32_t *)(row_of(b->x, b->x_stride, m) + 2 * k);
            even[m] = (__m256i)viset1(x[0]), odd[m] = (__m256i)viset1(x[1]);
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            const Halves halves = halves_of(w + 4 * v * LANES);
            UNROLL for (int m = 0; m < rows; m++) sums[m][v].i += multiply_halves(even[m], odd[m], halves);
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
#elif defined(NATIVE_NEON)
    const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return (vi)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
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

#if defined(NATIVE_DOT)
/* Four bytes of a row with four of each output at once, both signed: nothing is left to subtract. */
INLINE void add_dot(const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += 4, w += 4 * PANEL) {
        vi raw[8];
        fetch_ahead_int8(2, b, w);
        UNROLL for (int v = 0; v < vectors; v++) raw[v] = viload(w + 4 * v * LANES);
        UNROLL for (int m = 0; m < rows; m++) {
            const vi x = viset1(*(const int32_t *)(row_of(b->x, b->x_stride, m) + k));
            UNROLL for (int v = 0; v < vectors; v++)
                sums[m][v].i = (vi)vdotq_s32((int32x4_t)sums[m][v].i, (int8x16_t)raw[v], (int8x16_t)x);
        }
    }
}
#endif
