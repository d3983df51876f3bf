/* The handle: which instructions this CPU and this system have, and the threads. */
#include "native.h"

#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__)
#include <sys/auxv.h>

#define HWCAP_OF_SDOT (1 << 20) /* HWCAP_ASIMDDP. Linux: Documentation/arch/arm64/elf_hwcaps.rst */
#endif
#if defined(HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* Linux: Documentation/arch/x86/xstate.rst */
#define XFEATURE_XTILEDATA 18

/* The system gives the registers to processes that ask, for all their threads. */
static int has_amx(void) {
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
           __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16") && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#elif defined(__x86_64__)
static int has_amx(void) { return 0; }
#endif

#if defined(__x86_64__)
/* The compiler's own way to ask knows the name since GCC 11 alone. That the system keeps the registers, AVX2 says. */
static int has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static int has(enum Isa isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return isa == ISA_BASELINE || (isa == ISA_AVX2 && avx2) || (isa == ISA_AVX512 && avx2 && avx512) ||
           (isa == ISA_AMX && avx2 && avx512 && has_amx());
#elif defined(__aarch64__)
    return isa == ISA_BASELINE || isa == ISA_NEON;
#else
    return isa == ISA_BASELINE;
#endif
}

static void find_features(Library *library) {
#if defined(__x86_64__)
    library->vnni = library->isa == ISA_AVX512 && __builtin_cpu_supports("avx512vnni");
    library->bf16 = library->isa == ISA_AVX512 && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    library->dot = library->neon && (getauxval(AT_HWCAP) & HWCAP_OF_SDOT);
#else
    (void)library;
#endif
}

int32_t parley_interface(void) { return INTERFACE; }

Library *parley_open(int32_t threads, int32_t isa) {
    for (int32_t best = ISA_NEON; isa < 0; best--)
        if (has((enum Isa)best)) isa = best;
    if (threads < 1 || isa > ISA_NEON || !has((enum Isa)isa)) return NULL;
    Library *library = calloc(1, sizeof *library);
    if (!library) return NULL;
    library->isa = isa == ISA_AMX ? ISA_AVX512 : isa == ISA_NEON ? ISA_BASELINE : isa;
    library->amx = isa == ISA_AMX;
    library->neon = isa == ISA_NEON;
    find_features(library);
    library->pool = pool_open(library, threads);
    if (!library->pool) {
        free(library);
        return NULL;
    }
    library->threads = pool_threads(library->pool);
    return library;
}

void parley_close(Library *library) {
    pool_close(library->pool);
    free(library);
}
