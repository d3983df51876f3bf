/* Threads that run one task together, phase by phase, and sleep between tasks.
 *
 * A phase's tiles are cut into ranges, each with a word that holds the phase and the range's next tile; `done` counts
 * the phase's finished tiles. Whoever finishes the last one opens the next phase. A thread that comes late finds a
 * later phase and skips to it: nobody waits for a thread that holds no tile. One that is preempted may hold several of
 * its own range that it hasn't begun, up to MOST_TILES, for which the others wait.
 */
#define _GNU_SOURCE
#include "amx.h"
#include "native.h"
#include "waiting.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPIN_NANOSECONDS 20000 /* of waiting before sleep: less than a sleep and a wake-up cost */
#define RANGES 8               /* that a phase's tiles are cut into, at most */
#define MXCSR_OF_TASKS 0x9fc0  /* all exceptions masked, to nearest, denormals are zero in and out */
#define FPCR_OF_TASKS (1 << 24) /* the same of ARM's CPUs: FZ */

/* Near tiles that are taken at once. To take is an atomic operation, which waits for all that the thread has begun to
 * read: a tenth of a microsecond where weights come from memory. More of them would keep the others waiting where a
 * thread is held up that has taken them. */
#define MOST_TILES 8

typedef struct Ticket {
    _Alignas(LINE) _Atomic uint64_t next; /* phase << 32 | how many tiles of the range were taken */
} Ticket;

struct Pool {
    const Library *library;
    pthread_mutex_t running; /* one task at a time */
    pthread_t *threads;
    int32_t count; /* threads, the caller's included */
    pid_t owner;   /* threads don't survive a fork: a child runs its tasks alone */
    Task task;
    void *argument;
    _Alignas(LINE) _Atomic uint32_t epoch; /* odd while a task is open to those who come; futex */
    _Atomic uint32_t idle;                 /* sleep on epoch */
    _Atomic int32_t stopping;
    _Alignas(LINE) _Atomic uint32_t inside; /* threads of the pool within the task; futex of the caller */
    Ticket tickets[RANGES];
    int32_t ranges;
    _Alignas(LINE) _Atomic uint32_t phase;
    _Alignas(LINE) _Atomic uint32_t done;    /* futex of those who wait in a barrier */
    _Atomic uint32_t waiting;                /* sleep on phase */
};

typedef struct Start {
    Pool *pool;
    int32_t index;
} Start;

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0); }

/* Wait until the word is not `value`: spin for a while, then sleep, counted in `sleepers`. */
static void wait_while(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers) {
    int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    while (atomic_load_explicit(word, memory_order_acquire) == value) {
        if (nanoseconds() < until) {
            relax();
            continue;
        }
        atomic_fetch_add(sleepers, 1);
        if (atomic_load(word) == value) sleep_on(word, value);
        atomic_fetch_sub(sleepers, 1);
    }
}

static void run_task(Pool *pool, int32_t index) {
    Worker worker = {.library = pool->library, .index = index};
#if defined(__x86_64__)
    uint32_t before = _mm_getcsr();
    _mm_setcsr(MXCSR_OF_TASKS);
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)FPCR_OF_TASKS));
#endif
    pool->task(&worker, pool->argument);
    amx_release();
#if defined(__x86_64__)
    _mm_setcsr(before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(before));
#endif
}

static void *serve(void *argument) {
    Start start = *(Start *)argument;
    free(argument);
    Pool *pool = start.pool;
    for (uint32_t seen = 0;;) {
        wait_while(&pool->epoch, seen, &pool->idle);
        seen = atomic_load(&pool->epoch);
        if (atomic_load(&pool->stopping)) return NULL; /* whoever has seen the last epoch sees this */
        if (seen % 2 == 0) continue;
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->epoch) == seen) run_task(pool, start.index);
        if (atomic_fetch_sub(&pool->inside, 1) == 1 && atomic_load(&pool->epoch) != seen) wake(&pool->inside);
    }
}

static int start_thread(Pool *pool, int32_t index) {
    Start *start = malloc(sizeof *start);
    if (!start) return 0;
    *start = (Start){.pool = pool, .index = index};
    if (pthread_create(&pool->threads[index], NULL, serve, start) == 0) return 1;
    free(start);
    return 0;
}

Pool *pool_open(const Library *library, int32_t threads) {
    Pool *pool = NULL;
    if (posix_memalign((void **)&pool, LINE, sizeof *pool)) return NULL;
    *pool = (Pool){.library = library, .count = 1, .owner = getpid()};
    pthread_mutex_init(&pool->running, NULL);
    pool->threads = calloc((size_t)threads, sizeof *pool->threads);
    while (pool->threads && pool->count < threads && start_thread(pool, pool->count)) pool->count++;
    pool->ranges = pool->count < RANGES ? pool->count : RANGES;
    return pool;
}

int32_t pool_threads(const Pool *pool) { return pool->count; }

void pool_close(Pool *pool) {
    if (pool->owner == getpid()) {
        atomic_store(&pool->stopping, 1);
        atomic_fetch_add(&pool->epoch, 2);
        wake(&pool->epoch);
        for (int32_t i = 1; i < pool->count; i++) pthread_join(pool->threads[i], NULL);
    }
    pthread_mutex_destroy(&pool->running);
    free(pool->threads);
    free(pool);
}

void pool_run(const Library *library, Task task, void *argument, int parallel) {
    Pool *pool = library->pool;
    parallel = parallel && pool->count > 1 && pool->owner == getpid();
    pthread_mutex_lock(&pool->running);
    pool->task = task;
    pool->argument = argument;
    for (int32_t i = 0; i < pool->ranges; i++) atomic_store_explicit(&pool->tickets[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->phase, 0, memory_order_relaxed);
    if (parallel) {
        atomic_fetch_add(&pool->epoch, 1);
        if (atomic_load(&pool->idle)) wake(&pool->epoch);
    }
    run_task(pool, 0);
    if (parallel) {
        atomic_fetch_add(&pool->epoch, 1);
        for (uint32_t left; (left = atomic_load(&pool->inside));) {
            for (int i = 0; i < 125 && atomic_load(&pool->inside); i++) relax();
            if (atomic_load(&pool->inside) == left) sleep_on(&pool->inside, left);
        }
    }
    pthread_mutex_unlock(&pool->running);
}

/* Open the phase after `phase`, all of whose tiles are done; only one thread comes here for each phase. */
static void open_next(Pool *pool, uint32_t phase) {
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    for (int32_t i = 0; i < pool->ranges; i++)
        atomic_store_explicit(&pool->tickets[i].next, (uint64_t)(phase + 1) << 32, memory_order_release);
    atomic_store(&pool->phase, phase + 1);
    if (atomic_load(&pool->waiting)) wake(&pool->phase);
}

/* Take the next of the `count` tiles of a range: half of those that are left, but not more than `most`. Returns how
 * many; the first is in `tile`. */
static int64_t take(Ticket *from, uint32_t phase, int64_t count, int64_t most, int64_t *tile) {
    uint64_t ticket = atomic_load_explicit(&from->next, memory_order_acquire);
    while (ticket >> 32 == phase && (int64_t)(uint32_t)ticket < count) {
        int64_t half = (count - (int64_t)(uint32_t)ticket + 1) / 2, taken = half < most ? half : most;
        if (!atomic_compare_exchange_weak(&from->next, &ticket, ticket + (uint64_t)taken)) continue;
        *tile = (int64_t)(uint32_t)ticket;
        return taken;
    }
    return 0;
}

/* Nothing is left to take: tell the others what I finished. */
static int64_t leave(Worker *worker, int64_t count) {
    Pool *pool = worker->library->pool;
    int64_t tile;
    if (count == 0 && take(&pool->tickets[0], worker->phase, 1, 1, &tile)) open_next(pool, worker->phase);
    uint32_t mine = worker->finished;
    worker->finished = 0;
    if (mine && atomic_fetch_add(&pool->done, mine) + mine == (uint32_t)count) open_next(pool, worker->phase);
    return -1;
}

int64_t pool_tile(Worker *worker, int64_t count) {
    int64_t tile;
    if (!take(&worker->library->pool->tickets[0], worker->phase, count, 1, &tile)) return leave(worker, count);
    worker->finished++; /* told to the others when there is no tile left */
    return tile;
}

int64_t pool_near_tile(Worker *worker, int64_t count) {
    Pool *pool = worker->library->pool;
    if (worker->tile < worker->tile_end) return worker->tile++;
    for (int32_t i = 0; i < pool->ranges; i++) {
        int64_t range = (worker->index + i) % pool->ranges, first = count * range / pool->ranges, tile;
        int64_t size = count * (range + 1) / pool->ranges - first;
        int64_t taken = take(&pool->tickets[range], worker->phase, size, i ? 1 : MOST_TILES, &tile);
        if (!taken) continue;
        worker->finished += (uint32_t)taken;
        worker->tile = first + tile + 1;
        worker->tile_end = first + tile + taken;
        return first + tile;
    }
    return leave(worker, count);
}

void pool_barrier(Worker *worker) {
    Pool *pool = worker->library->pool;
    /* `phase` only grows, and to at most one more than mine while I wait, unless I am late */
    if (atomic_load_explicit(&pool->phase, memory_order_acquire) == worker->phase)
        wait_while(&pool->phase, worker->phase, &pool->waiting);
    worker->phase++;
}
