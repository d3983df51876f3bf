/* How threads wait for a moment before they sleep. */
#ifndef PARLEY_WAITING_H
#define PARLEY_WAITING_H

#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE 64 /* bytes that move between cores together */

static inline int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    for (int i = 0; i < 8; i++) _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* YIELD waits for nothing */
#endif
}

#endif
