/* Vectors of one ISA, for templates: a source says which by defining NATIVE_ISA as 0, 1 or 2 (enum Isa) and
 * includes this, then the template, whose functions are named ISA(name). With ISA 2 it may also define NATIVE_VNNI or
 * NATIVE_BF16; its functions must then only be called where the library has these.
 *
 *   vf, vi          vectors of LANES floats, int32; + - * / & | ^ ~ << >> and comparisons (giving vi) are C operators
 *   vfma(a, b, c)   a * b + c, fused where the ISA can (the baseline can't)
 *   vmax(a, b)      b where either is NaN; so is vmin; vimax(a, b) of integers
 *   vsum, vhmax     over the lanes, in a fixed order
 */
#ifndef PARLEY_VECTOR_H
#define PARLEY_VECTOR_H

#include "native.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#error "GCC is needed: the copies for each ISA are made by its target pragma"
#elif NATIVE_ISA == 2
#define ISA(name) name##_avx512
#define LANES 16
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,prefer-vector-width=512")
#if defined(NATIVE_VNNI)
#pragma GCC target("avx512vnni")
#elif defined(NATIVE_BF16)
#pragma GCC target("avx512bf16")
#endif
#elif NATIVE_ISA == 1
#define ISA(name) name##_avx2
#define LANES 8
#pragma GCC target("avx2,fma,f16c")
#else
#define ISA(name) name##_baseline
#define LANES 4
#if defined(__aarch64__)
#define NATIVE_NEON
#endif
#if defined(NATIVE_DOT)
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 16")

/* How near what is needed soon is fetched (__builtin_prefetch). What the second cache was asked for (2) lay in the third
 * afterwards, mostly (Zen 5); the first (3) leaves it in the second, too: linears of 8 and 16 rows of float32 took
 * 0.88 to 0.96 times as long, most others as long. */
#define SOON (NATIVE_ISA == 2 ? 3 : 2)

#define NO_FRACTION 12582912.0f /* 1.5 * 2^23: what it is added to, of less than 2^22, has none in the sum */

typedef float vf __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES), may_alias));
typedef float vf_unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vf vload(const float *p) { return *(const vf_unaligned *)p; }
INLINE void vstore(float *p, vf v) { *(vf_unaligned *)p = v; }
INLINE vi viload(const void *p) { return *(const vi_unaligned *)p; }
INLINE void vistore(void *p, vi v) { *(vi_unaligned *)p = v; }
INLINE vf vzero(void) { return (vf){0}; }
INLINE vi vizero(void) { return (vi){0}; }
INLINE vf vset1(float x) { return x - (vf){0}; } /* x - 0 is x, for -0 and NaN too */
INLINE vi viset1(int32_t x) { return x - (vi){0}; }
INLINE vf vselect(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
INLINE vf vabs(vf v) { return (vf)((vi)v & viset1(0x7fffffff)); }

/* The first n of LANES; the others read as zero, and are not written. */
INLINE vf vload_part(const float *p, int64_t n);
INLINE void vstore_part(float *p, int64_t n, vf v);
INLINE vf vload_bf16(const uint16_t *p);

/* The first n of LANES in bfloat16; the others read as zero. */
INLINE vf vload_bf16_part(const uint16_t *p, int64_t n) {
    uint16_t part[LANES] = {0};
    memcpy(part, p, (size_t)(n > LANES ? LANES : n) * sizeof *p);
    return vload_bf16(part);
}

/* The nearest bfloat16, of two the even one; a NaN stays one. */
INLINE uint16_t round_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* All ones in the first n lanes. */
INLINE vi vfirst_mask(int64_t n) {
    vi lane;
    for (int32_t i = 0; i < LANES; i++) lane[i] = i;
    return lane < viset1(n > LANES ? LANES : (int32_t)n);
}

#if NATIVE_ISA == 2
INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vi vimax(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE vf vsqrt(vf v) { return _mm512_sqrt_ps(v); }
INLINE vi vtoint(vf v) { return (vi)_mm512_cvtps_epi32(v); } /* to nearest, ties to even */
INLINE vf vtofloat(vi v) { return _mm512_cvtepi32_ps((__m512i)v); }
INLINE __mmask16 vfirst(int64_t n) { return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1); }
INLINE vf vload_part(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vfirst(n), p); }
INLINE void vstore_part(float *p, int64_t n, vf v) { _mm512_mask_storeu_ps(p, vfirst(n), v); }
INLINE vf vload_bf16(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
INLINE vf vload_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
#elif NATIVE_ISA == 1
INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vi vimax(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INLINE vf vsqrt(vf v) { return _mm256_sqrt_ps(v); }
INLINE vi vtoint(vf v) { return (vi)_mm256_cvtps_epi32(v); }
INLINE vf vtofloat(vi v) { return _mm256_cvtepi32_ps((__m256i)v); }
INLINE __m256i vfirst(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > 8 ? 8 : (int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vload_part(const float *p, int64_t n) { return _mm256_maskload_ps(p, vfirst(n)); }
INLINE void vstore_part(float *p, int64_t n, vf v) { _mm256_maskstore_ps(p, vfirst(n), v); }
INLINE vf vload_bf16(const uint16_t *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
INLINE vf vload_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
#else
#if defined(NATIVE_NEON)
INLINE vf vfma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vf vsqrt(vf v) { return (vf)vsqrtq_f32((float32x4_t)v); }
INLINE vi vtoint(vf v) { return (vi)vcvtnq_s32_f32((float32x4_t)v); }
INLINE vf vload_bf16(const uint16_t *p) { return (vf)vshll_n_u16(vld1_u16(p), 16); }
INLINE vf vload_f16(const uint16_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE vf vhalf(vi h) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)h))); }
#else
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf vsqrt(vf v) {
    for (int i = 0; i < LANES; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
}
INLINE vi vtoint(vf v) { return __builtin_convertvector(v + vset1(NO_FRACTION) - vset1(NO_FRACTION), vi); }
INLINE vi vload_u16(const uint16_t *p) {
    vi v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
}
INLINE vf vload_bf16(const uint16_t *p) { return (vf)(vload_u16(p) << 16); }
INLINE vf vhalf(vi h) { /* float16 in the lower 16 bits, above them zeros */
    vi exponent = h & viset1(0x7c00), mantissa = h & viset1(0x3ff);
    vi normal = ((h & viset1(0x7fff)) << 13) + viset1(112 << 23);
    vi infinite = normal + viset1(112 << 23);                          /* inf and NaN keep the top exponent */
    vi small = (vi)(__builtin_convertvector(mantissa, vf) * vset1(5.9604644775390625e-8f)); /* 2^-24 */
    vi top = exponent == viset1(0x7c00), bottom = exponent == vizero();
    vi bits = (top & infinite) | (bottom & small) | (~(top | bottom) & normal);
    return (vf)(bits | (h & viset1(0x8000)) << 16);
}
INLINE vf vload_f16(const uint16_t *p) { return vhalf(vload_u16(p)); }
#endif
INLINE vf vmax(vf a, vf b) { return vselect(a > b, a, b); }
INLINE vf vmin(vf a, vf b) { return vselect(a < b, a, b); }
INLINE vi vimax(vi a, vi b) {
    vi less = a < b;
    return (less & b) | (~less & a);
}
INLINE vf vtofloat(vi v) { return __builtin_convertvector(v, vf); }
INLINE vf vload_part(const float *p, int64_t n) {
    vf v = vzero();
    if (n >= LANES) return vload(p);
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
INLINE void vstore_part(float *p, int64_t n, vf v) {
    if (n >= LANES)
        vstore(p, v);
    else
        memcpy(p, &v, (size_t)n * 4);
}
#endif

/* Halves are added to each other, down to one; and so is the greatest found: NaN in the first lane is the result, one
 * in another lane hides the lane that it is compared with, or isn't seen. */
#if NATIVE_ISA == 2
INLINE __m256 vfold_sum(vf v) { return _mm512_castps512_ps256(v) + _mm512_extractf32x8_ps(v, 1); }
INLINE __m256 vfold_max(vf v) { return _mm256_max_ps(_mm512_extractf32x8_ps(v, 1), _mm512_castps512_ps256(v)); }
#elif NATIVE_ISA == 1
INLINE __m256 vfold_sum(vf v) { return v; }
INLINE __m256 vfold_max(vf v) { return v; }
#endif
#if NATIVE_ISA
INLINE float vsum(vf v) {
    __m256 eight = vfold_sum(v);
    __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    __m128 two = four + _mm_movehl_ps(four, four);
    return two[0] + two[1];
}
INLINE float vhmax(vf v) {
    __m256 eight = vfold_max(v);
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return two[1] > two[0] ? two[1] : two[0];
}
#else
INLINE float vsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
INLINE float vhmax(vf v) {
    float even = v[2] > v[0] ? v[2] : v[0], odd = v[3] > v[1] ? v[3] : v[1];
    return odd > even ? odd : even;
}
#endif

/* The integer that is nearest to x log2(e). */
#define LOG2_E 1.44269504f
INLINE vf vexponent(vf x) { return vfma(x, vset1(LOG2_E), vset1(NO_FRACTION)) - vset1(NO_FRACTION); }

/* p 2^n, for integers n. */
#if NATIVE_ISA == 2
#define LEAST_EXPONENT -150.0f /* with which all is nothing */
INLINE vf vscale(vf p, vf n) { return _mm512_scalef_ps(p, n); }
#else
#define LEAST_EXPONENT -126.0f
INLINE vf vscale(vf p, vf n) { return p * (vf)((vtoint(n) + viset1(127)) << 23); }
#endif

/* e^x within 2 units in the last place; 0 below -87.3, no more than 2.4e38 above 88.3, NaN for NaN. */
INLINE vf vexp(vf x) {
    const vf low = vset1(LEAST_EXPONENT * 0.693147f);
    vf held = vmin(vset1(88.37626f), vmax(low, x));
    vf n = vexponent(held);
    vf r = vfma(n, vset1(2.12194440e-4f), vfma(n, vset1(-0.693359375f), held)); /* x - n ln 2, in two parts */
    vf p = vset1(1.38145988e-3f);
    p = vfma(p, r, vset1(8.36871658e-3f));
    p = vfma(p, r, vset1(4.16683890e-2f));
    p = vfma(p, r, vset1(1.66665211e-1f));
    p = vfma(p, r, vset1(4.99999940e-1f));
    p = vfma(p, r * r, r + vset1(1.0f));
#if NATIVE_ISA == 2
    return vscale(p, n); /* what is small is nothing to tasks */
#else
    return (vf)((vi)vscale(p, n) & ~(x < low));
#endif
}

#endif
