/* The template of linears whose weights AVX-512 multiplies as they lie: one k of float32, two of bfloat16 with rounded
 * inputs, four of int8. Each is two lines of a panel and four bytes of a row.
 *
 * Rows are found by two pointers and a stride. With an offset for each, blocks of 11 and 12 rows had too few registers,
 * so that 24 and 32 rows were three and four blocks of 8, which read the panel as often: they took 1.05 to 1.12 times as
 * long, with int8 1.03 to 1.05 times (Zen 5). */

#define PAIR_BYTES (PANEL * 4) /* of two lines */

INLINE int adds_pairs(const int kind) {
    return kind == KIND_FLOAT32 || kind == KIND_WIDENED || kind == KIND_ROUNDED || kind == KIND_VNNI;
}

INLINE int64_t pairs_of(const int kind, int64_t k) {
    return kind == KIND_ROUNDED ? (k + 1) / 2 : kind == KIND_VNNI ? (k + 3) / 4 : k;
}

INLINE void add_product(const int kind, Sum *sum, vi x, vi w) {
#if defined(NATIVE_BF16)
    if (kind == KIND_ROUNDED) {
        sum->f = _mm512_dpbf16_ps(sum->f, (__m512bh)x, (__m512bh)w);
        return;
    }
#elif defined(NATIVE_VNNI)
    if (kind == KIND_VNNI) {
        sum->i = (vi)_mm512_dpbusd_epi32((__m512i)sum->i, (__m512i)x, (__m512i)w);
        return;
    }
#endif
    (void)kind;
    sum->f = vfma((vf)x, (vf)w, sum->f);
}

/* The compiler is kept from multiplying the stride out, to an offset for each row. */
INLINE void add_line_pairs(const int kind, const int rows, const int vectors, const Block *b, Sum sums[MOST_ROWS][8]) {
    const int half = (rows + 1) / 2;
    const char *x = b->x, *lower = x + half * b->x_stride, *w = b->w;
    int64_t stride = b->x_stride;
    for (int64_t left = pairs_of(kind, b->k); left > 0; left--, x += 4, lower += 4, w += PAIR_BYTES) {
        vi raw[8];
        if (kind == KIND_VNNI) fetch_ahead_int8(2, b, w);
        if (kind == KIND_FLOAT32 || kind == KIND_ROUNDED) fetch_ahead(2, b, w);
        __asm__("" : "+r"(x), "+r"(lower), "+r"(stride));
        UNROLL for (int v = 0; v < vectors; v++) raw[v] = viload(w + 4 * v * LANES);
        UNROLL for (int m = 0; m < rows; m++) {
            const vi one = viset1(*(const int32_t *)(m < half ? x + m * stride : lower + (m - half) * stride));
            UNROLL for (int v = 0; v < vectors; v++) add_product(kind, &sums[m][v], one, raw[v]);
        }
    }
}
