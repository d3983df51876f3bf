/* Template (see vector.h): the norms of layers and of what is around them, each of one row. */

/* The sum of a row, in an order that depends on its length alone. */
INLINE float ISA(sum_of)(const float *x, int64_t n) {
    vf sum[4] = {vzero(), vzero(), vzero(), vzero()};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) sum[j] += vload(x + i + j * LANES);
    for (; i < n; i += LANES) sum[0] += vload_part(x + i, n - i);
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* What a row with such a mean is multiplied by, once that is subtracted: not of sums of squares, which would cancel. */
INLINE float ISA(centred_scale)(const float *x, float mean, int64_t n, float eps) {
    const vf less = vset1(mean);
    vf even = vzero(), odd = vzero();
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf a = vload(x + i) - less, b = vload(x + i + LANES) - less;
        even = vfma(a, a, even);
        odd = vfma(b, b, odd);
    }
    float sum = vsum(even + odd);
    for (; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return 1.0f / __builtin_sqrtf(sum / (float)n + eps);
}

/* out = (x - mean) * scale * weight + bias (Ba et al. 2016, layer norm); out may be x. */
INLINE void ISA(centred_norm)(const float *x, const float *weight, const float *bias, int64_t n, float eps, float *out) {
    const float mean = ISA(sum_of)(x, n) / (float)n;
    const vf less = vset1(mean), by = vset1(ISA(centred_scale)(x, mean, n, eps));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vstore(out + i, vfma((vload(x + i) - less) * by, vload(weight + i), vload(bias + i)));
    if (i == n) return;
    vf normed = (vload_part(x + i, n - i) - less) * by;
    vstore_part(out + i, n - i, vfma(normed, vload_part(weight + i, n - i), vload_part(bias + i, n - i)));
}

/* out = norm(x) of n numbers, centred or RMS, where centred weights are followed by as many biases; out may be x. */
INLINE void ISA(norm)(int64_t centred, const float *x, const float *weights, int64_t n, float eps, float *out) {
    if (centred)
        ISA(centred_norm)(x, weights, weights + n, n, eps, out);
    else
        ISA(apply_norm)(x, ISA(rms_scale)(x, n, eps), weights, n, out);
}
