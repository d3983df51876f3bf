/* The template of what the machine can do at most, which benchmarks hold the kernels against. */
#include "roof.h"

#define CHAINS 12 /* independent sums: more than latency times throughput of any CPU so far */

/* The peaks return the operations of one round; `use` keeps the compiler from leaving them out. */
#if defined(NATIVE_VNNI)
int64_t ISA(peak_vnni)(int64_t rounds, float *use) {
    vi sums[CHAINS], x = viset1((int32_t)use[0]), y = viset1((int32_t)use[1]);
    for (int j = 0; j < CHAINS; j++) sums[j] = viset1(j);
    for (int64_t i = 0; i < rounds; i++)
        _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++)
            sums[j] = (vi)_mm512_dpbusd_epi32((__m512i)sums[j], (__m512i)x, (__m512i)y);
    for (int j = 0; j < CHAINS; j++) use[2] += vsum(vtofloat(sums[j]));
    return 8 * CHAINS * LANES;
}
#elif defined(NATIVE_BF16)
int64_t ISA(peak_bf16)(int64_t rounds, float *use) {
    vf sums[CHAINS];
    vi x = viset1((int32_t)use[0]), y = viset1((int32_t)use[1]);
    for (int j = 0; j < CHAINS; j++) sums[j] = vset1((float)j);
    for (int64_t i = 0; i < rounds; i++)
        _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++)
            sums[j] = _mm512_dpbf16_ps(sums[j], (__m512bh)x, (__m512bh)y);
    for (int j = 0; j < CHAINS; j++) use[2] += vsum(sums[j]);
    return 4 * CHAINS * LANES;
}
#else
float ISA(read_memory)(const float *x, int64_t count) {
    vf sums[8] = {{0}};
    for (int64_t i = 0; i + 8 * LANES <= count; i += 8 * LANES) {
        for (int j = 0; j < 8; j++) __builtin_prefetch((const char *)(x + i + j * LANES) + 4096);
        for (int j = 0; j < 8; j++) sums[j] = (vf)((vi)sums[j] ^ (vi)vload(x + i + j * LANES));
    }
    for (int j = 1; j < 8; j++) sums[0] = (vf)((vi)sums[0] ^ (vi)sums[j]);
    return sums[0][0];
}

int64_t ISA(peak_float)(int64_t rounds, float *use) {
    vf sums[CHAINS], x = vset1(use[0]), y = vset1(use[1]);
    for (int j = 0; j < CHAINS; j++) sums[j] = vset1((float)j);
    for (int64_t i = 0; i < rounds; i++)
        _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++) sums[j] = vfma(x, y, sums[j]);
    for (int j = 0; j < CHAINS; j++) use[2] += vsum(sums[j]);
    return 2 * CHAINS * LANES;
}

#if NATIVE_ISA == 1
/* Without VPDPBUSD, as linear_int8.inc.h multiplies. Its sums alone wait for each other, an addition's time: fewer of
 * them leave registers for the rest. */
int64_t ISA(peak_int8)(int64_t rounds, float *use) {
    enum { FEW_CHAINS = 8 };
    __m256i x = (__m256i)viset1((int32_t)use[0]), y = (__m256i)viset1((int32_t)use[1]), z = x;
    vi sums[FEW_CHAINS];
    for (int j = 0; j < FEW_CHAINS; j++) sums[j] = viset1(j);
    for (int64_t i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < FEW_CHAINS; j++) {
            __asm__("" : "+x"(x), "+x"(y), "+x"(z)); /* or it is done once */
            sums[j] += (vi)_mm256_madd_epi16(_mm256_add_epi16(x, y), _mm256_add_epi16(y, z));
        }
    for (int j = 0; j < FEW_CHAINS; j++) use[2] += vsum(vtofloat(sums[j]));
    return 8 * FEW_CHAINS * LANES;
}
#endif
#endif
