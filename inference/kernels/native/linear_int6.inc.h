/* The template of int8 in six bits (linear.h), with VPDPBUSD. */

/* The four lines of eight k: the last one is put together. */
INLINE void decode_eight(const char *w, vi lines[EIGHT_LINES]) {
    const vi upper = viset1(-0x03030304), first = viset1(-0x3f3f3f40), second = viset1(0x30303030);
    for (int i = 0; i < EIGHT_LINES - 1; i++) lines[i] = viload(w + 64 * i);
    vi fourth = (lines[0] << 6 & first) | (lines[1] << 4 & second) | (lines[2] << 2 & ~(first | second));
    lines[3] = fourth & upper;
    for (int i = 0; i < EIGHT_LINES - 1; i++) lines[i] &= upper;
}

/* Its rows take the whole panel. */
INLINE void add_int6(const int rows, const Block *b, Sum sums[MOST_ROWS][8]) {
    const char *w = b->w;
    for (int64_t k = 0; k < b->k; k += EIGHT, w += EIGHT_BYTES) {
        vi lines[EIGHT_LINES];
        fetch_ahead_int8(3, b, w);
        decode_eight(w, lines);
        UNROLL for (int m = 0; m < rows; m++) {
            const int32_t *x = (const int32_t *)(row_of(b->x, b->x_stride, m) + k);
            UNROLL for (int i = 0; i < EIGHT_LINES; i++)
                sums[m][i % 2].i = (vi)_mm512_dpbusd_epi32((__m512i)sums[m][i % 2].i, (__m512i)viset1(x[i / 2]),
                                                           (__m512i)lines[i]);
        }
    }
}
