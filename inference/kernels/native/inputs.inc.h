/* The template of prepared inputs: one row of floats, quantised or rounded. Rows are whole 64-byte lines,
 * with zeros beyond k. */

/* As integers, magnitudes compare like floats, NaN above infinity. */
INLINE vi magnitude(vf v) { return (vi)v & viset1(0x7fffffff); }

/* Symmetric, by the row's greatest magnitude. A row that isn't finite gets the scale NaN, and so its outputs. */
INLINE float scale_of(const float *x, int64_t k) {
    vi four[4] = {vizero(), vizero(), vizero(), vizero()}; /* the next comparison needn't wait for the last */
    int64_t i = 0;
    for (; i + 4 * LANES <= k; i += 4 * LANES)
        for (int j = 0; j < 4; j++) four[j] = vimax(four[j], magnitude(vload(x + i + j * LANES)));
    for (; i < k; i += LANES) four[0] = vimax(four[0], magnitude(vload_part(x + i, k - i)));
    vi most = vimax(vimax(four[0], four[1]), vimax(four[2], four[3]));
    int32_t best = 0;
    for (int lane = 0; lane < LANES; lane++) best = most[lane] > best ? most[lane] : best;
    float greatest;
    memcpy(&greatest, &best, sizeof greatest);
    return best >= 0x7f800000 ? __builtin_nanf("") : greatest / 127.0f;
}

/* 64 inputs to int8 + 128 in the order of k (unsigned), or to int16, of every four the even ones first; for AVX2 less
 * 128. For SDOT to int8 in the order of k. */
#if NATIVE_ISA == 2
INLINE void store_quantized(const vi q[4], char *to, const int is_unsigned) {
    for (int i = 0; i < 4; i++) {
        if (is_unsigned) {
            __m128i bytes = _mm512_cvtepi32_epi8((__m512i)q[i]);
            _mm_storeu_si128((__m128i *)(to + 16 * i), _mm_xor_si128(bytes, _mm_set1_epi8(-128)));
        } else {
            __m512i order = (__m512i)_mm512_shuffle_epi32((__m512i)q[i], _MM_PERM_DBCA);
            _mm256_storeu_si256((__m256i *)(to + 32 * i), _mm512_cvtepi32_epi16(order));
        }
    }
}
#elif NATIVE_ISA == 1
INLINE void store_quantized(const vi *q, char *to, const int is_unsigned) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7,
                                           8, 9, 12, 13, 10, 11, 14, 15);
    (void)is_unsigned;
    for (int i = 0; i < 4; i++) {
        __m256i words = _mm256_packs_epi32((__m256i)q[2 * i], (__m256i)q[2 * i + 1]); /* by halves of registers */
        words = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(words, 0xd8), order);
        _mm256_storeu_si256((__m256i *)(to + 32 * i), _mm256_sub_epi16(words, _mm256_set1_epi16(128)));
    }
}
#elif defined(NATIVE_DOT)
INLINE void store_quantized(const vi *q, char *to, const int in_order) {
    (void)in_order;
    for (int i = 0; i < 16; i += 4) {
        int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)q[i]), vmovn_s32((int32x4_t)q[i + 1]));
        int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)q[i + 2]), vmovn_s32((int32x4_t)q[i + 3]));
        vst1q_s8((int8_t *)to + 4 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
}
#else
INLINE void store_quantized(const vi *q, char *to, const int is_unsigned) {
    (void)is_unsigned; /* only VNNI takes them so */
    int32_t values[64];
    memcpy(values, q, sizeof values);
    for (int i = 0; i < 64; i++) ((int16_t *)to)[(i & ~3) + (i & 1) * 2 + (i >> 1 & 1)] = (int16_t)values[i];
}
#endif

/* Of each two neighbours the product, summed: what linear_int8.inc.h subtracts. */
#if NATIVE_ISA == 1
typedef __m256i Pairs;

INLINE Pairs add_pairs(Pairs sum, vi q) {
    return _mm256_add_epi64(sum, _mm256_mul_epi32((__m256i)q, _mm256_srli_epi64((__m256i)q, 32)));
}

INLINE int32_t sum_pairs(Pairs sum) {
    return (int32_t)(_mm256_extract_epi64(sum, 0) + _mm256_extract_epi64(sum, 1) + _mm256_extract_epi64(sum, 2) +
                     _mm256_extract_epi64(sum, 3));
}
#else
typedef vi Pairs;

INLINE Pairs add_pairs(Pairs sum, vi q) { return (void)q, sum; }
INLINE int32_t sum_pairs(Pairs sum) { return sum[0]; }
#endif

INLINE float quantize(const float *x, int64_t k, char *row, int32_t *pairs, const int is_unsigned) {
    Pairs products = (Pairs)vizero();
    float scale = scale_of(x, k), inverse = 1.0f / scale;
    if (!(scale > 1e-30f)) inverse = 0.0f; /* all zeros, too small to divide by, or NaN */
    for (int64_t from = 0; from < k; from += 64) {
        vi q[64 / LANES];
        for (int i = 0; i < 64 / LANES; i++) {
            int64_t left = k - from - i * LANES;
            vf v = left >= LANES ? vload(x + from + i * LANES) : vzero();
            if (left > 0 && left < LANES) v = vload_part(x + from + i * LANES, left);
            q[i] = vtoint(v * vset1(inverse));
            if (inverse == 0.0f) q[i] = vizero();
            products = add_pairs(products, q[i]);
        }
        store_quantized(q, row + (is_unsigned ? 1 : 2) * from, is_unsigned);
    }
    if (pairs) *pairs = sum_pairs(products);
    return scale;
}

#define DEFINE_QUANTIZE(name, is_unsigned) \
    float name(const float *x, int64_t k, void *row, int32_t *pairs) { return quantize(x, k, row, pairs, is_unsigned); }

#if defined(NATIVE_BF16)
INLINE void round_row(const float *x, int64_t k, uint16_t *row) {
    int64_t i = 0;
    for (; i + 32 <= k; i += 32)
        _mm512_storeu_si512(row + i, (__m512i)_mm512_cvtne2ps_pbh(vload(x + i + 16), vload(x + i)));
    for (; i < k; i += 32) {
        vf a = vload_part(x + i, k - i), b = k - i > 16 ? vload_part(x + i + 16, k - i - 16) : vzero();
        _mm512_storeu_si512(row + i, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

#define DEFINE_ROUND(name) \
    void name(const float *x, int64_t k, uint16_t *row) { round_row(x, k, row); }
#endif
