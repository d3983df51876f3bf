/* Template (see vector.h): functions of one real argument that layers need, lane by lane. */
#include "experts.h" /* enum Activation */

/* tanh x: near 0 by its series, where the other form would cancel. */
INLINE vf ISA(tanh)(vf x) {
    vf size = vabs(x), square = x * x;
    vf e = vexp(vset1(-2.0f) * size);
    vf far = (vset1(1.0f) - e) / (vset1(1.0f) + e);
    vf p = vset1(62.0f / 2835);
    p = vfma(p, square, vset1(-17.0f / 315));
    p = vfma(p, square, vset1(2.0f / 15));
    p = vfma(p, square, vset1(-1.0f / 3));
    vf near = vfma(p * square, size, size);
    vf result = vselect(size < vset1(0.25f), near, far);
    return (vf)((vi)result | ((vi)x & viset1((int32_t)0x80000000)));
}

INLINE vf ISA(silu)(vf x) { return x / (vset1(1.0f) + vexp(vzero() - x)); }

INLINE vf ISA(gelu_tanh)(vf x) {
    vf inner = vset1(0.79788456080286536f) * vfma(vset1(0.044715f) * x * x, x, x);
    return vset1(0.5f) * x * (vset1(1.0f) + ISA(tanh)(inner));
}

INLINE vf ISA(gelu)(vf x) {
    vf erf = x * vset1(0.70710678118654752f);
    for (int i = 0; i < LANES; i++) erf[i] = __builtin_erff(erf[i]);
    return vset1(0.5f) * x * (vset1(1.0f) + erf);
}

INLINE vf ISA(squared_relu)(vf x) {
    const vf positive = vselect(x < vzero(), vzero(), x); /* NaN stays NaN */
    return positive * positive;
}

/* exp(x) - 1 of x that isn't above 0: near it by its series, where the other form would cancel. */
INLINE vf ISA(expm1_below)(vf x) {
    vf p = vset1(1.0f / 5040);
    const float rest[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f};
    for (int i = 0; i < 5; i++) p = vfma(p, x, vset1(rest[i]));
    return vselect(vset1(-0.25f) < x, vfma(p * x, x, x), vexp(x) - vset1(1.0f));
}

/* a x^2 + b x above 0, c (exp(min(x, d)) - 1 - x) + b x elsewhere (Huang and Schlag 2024), of numbers a, b, c, d. */
INLINE vf ISA(xielu)(const float *numbers, vf x) {
    const vf above = vset1(numbers[0]), linear = vset1(numbers[1]), least = vset1(numbers[3]);
    vf below = ISA(expm1_below)(vselect(least < x, least, x)) - x;
    return vselect(vzero() < x, vfma(above, x, linear) * x, vfma(vset1(numbers[2]), below, linear * x));
}

/* enum Activation, but XIELU */
INLINE vf ISA(activate)(int64_t activation, vf x) {
    if (activation == SILU) return ISA(silu)(x);
    if (activation == SQUARED_RELU) return ISA(squared_relu)(x);
    if (activation == RELU) return vselect(x < vzero(), vzero(), x);
    return activation == GELU_TANH ? ISA(gelu_tanh)(x) : ISA(gelu)(x);
}

/* The sum of squares of a row, in an order that depends on its length alone. */
INLINE float ISA(sum_of_squares)(const float *x, int64_t n) {
    vf sum[4] = {vzero(), vzero(), vzero(), vzero()};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vf value = vload(x + i + j * LANES);
            sum[j] = vfma(value, value, sum[j]);
        }
    for (; i < n; i += LANES) {
        vf value = vload_part(x + i, n - i);
        sum[0] = vfma(value, value, sum[0]);
    }
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* What an RMS norm multiplies a row by. */
INLINE float ISA(rms_scale)(const float *x, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(ISA(sum_of_squares)(x, n) / (float)n + eps);
}

/* out = x * scale * weight */
INLINE void ISA(apply_norm)(const float *x, float scale, const float *weight, int64_t n, float *out) {
    const vf by = vset1(scale);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(out + i, vload(x + i) * by * vload(weight + i));
    if (i < n) vstore_part(out + i, n - i, vload_part(x + i, n - i) * by * vload_part(weight + i, n - i));
}

#include "norms.inc.h"

/* Rotate the first `n` numbers of a head in place, its halves or (interleaved) its pairs against each other. */
INLINE void ISA(rotate)(float *x, const float *cosines, const float *sines, int64_t n, int64_t interleaved) {
    int64_t half = n / 2, i = 0;
    if (interleaved) {
        for (; i < n; i += 2) {
            float a = x[i], b = x[i + 1];
            x[i] = a * cosines[i] - b * sines[i];
            x[i + 1] = b * cosines[i + 1] + a * sines[i + 1];
        }
        return;
    }
    for (; i < half; i += LANES) {
        int64_t left = half - i;
        vf a = vload_part(x + i, left), b = vload_part(x + half + i, left);
        vf low = a * vload_part(cosines + i, left) - b * vload_part(sines + i, left);
        vf high = b * vload_part(cosines + half + i, left) + a * vload_part(sines + half + i, left);
        vstore_part(x + i, left, low);
        vstore_part(x + half + i, left, high);
    }
}
