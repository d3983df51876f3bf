/* Memory that several processes share, in which each leaves what all read, turn by turn.
 *
 * A seat's turn says how many of its owner's parts are there to be read. Parts lie in two places in turns: who writes
 * the next but one has seen that all have left the one after it, and so have read the one before.
 */
#define _GNU_SOURCE
#include "native.h"
#include "waiting.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NANOSECONDS 50000   /* of waiting for another process before sleep */
#define LOOK_NANOSECONDS 500000000 /* between looks at whether somebody has left, as nobody may have said so */

typedef struct Seat {
    _Alignas(LINE) _Atomic uint32_t turn; /* futex */
} Seat;

typedef struct Table {
    _Alignas(LINE) _Atomic uint32_t left; /* somebody is gone, and nothing will be whole any more */
    _Atomic uint32_t asleep;              /* wait on a seat */
    Seat seats[];
} Table;

typedef struct Exchange {
    Table *table;
    char *parts;   /* [turn % 2][rank][size] */
    int64_t size;  /* of a part, in bytes: a multiple of LINE */
    int32_t rank, count;
    uint32_t turn;
} Exchange;

static int64_t table_bytes(int32_t count) { return (int64_t)sizeof(Table) + count * (int64_t)sizeof(Seat); }

static char *part(const Exchange *exchange, int32_t rank) {
    return exchange->parts + (exchange->turn % 2 * exchange->count + rank) * exchange->size;
}

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static int is_behind(Seat *seat, uint32_t turn) { return (int32_t)(atomic_load(&seat->turn) - turn) < 0; }

static int await(Table *table, Seat *seat, uint32_t turn) {
    const struct timespec look = {0, LOOK_NANOSECONDS};
    int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    while (is_behind(seat, turn)) {
        if (atomic_load(&table->left)) return -1;
        if (nanoseconds() < until) {
            relax();
            continue;
        }
        atomic_fetch_add(&table->asleep, 1);
        uint32_t now = atomic_load(&seat->turn);
        if ((int32_t)(now - turn) < 0 && !atomic_load(&table->left))
            syscall(SYS_futex, &seat->turn, FUTEX_WAIT, now, &look, NULL, 0);
        atomic_fetch_sub(&table->asleep, 1);
    }
    return 0;
}

/* My part is written: have it read, and wait for the others' parts. */
static int turn_over(Exchange *exchange) {
    Table *table = exchange->table;
    Seat *own = &table->seats[exchange->rank];
    atomic_store(&own->turn, exchange->turn);
    if (atomic_load(&table->asleep)) wake(&own->turn);
    for (int32_t rank = 0; rank < exchange->count; rank++)
        if (await(table, &table->seats[rank], exchange->turn)) return -1;
    return 0;
}

/* The bytes of memory, all zeros at first, for `count` processes and parts of `size` bytes. */
EXPORT int64_t parley_exchange_bytes(int32_t count, int64_t size) { return table_bytes(count) + 2 * count * size; }

EXPORT Exchange *parley_exchange_open(void *memory, int32_t rank, int32_t count, int64_t size) {
    Exchange *exchange = malloc(sizeof *exchange);
    if (!exchange) return NULL;
    *exchange = (Exchange){.table = memory, .parts = (char *)memory + table_bytes(count),
                           .size = size, .rank = rank, .count = count};
    return exchange;
}

EXPORT void parley_exchange_close(Exchange *exchange) { free(exchange); }

/* Tell all who wait that they wait in vain; from any thread. */
EXPORT void parley_exchange_leave(Exchange *exchange) {
    atomic_store(&exchange->table->left, 1);
    for (int32_t rank = 0; rank < exchange->count; rank++) wake(&exchange->table->seats[rank].turn);
}

/* Leave `bytes` for the others; what rank leaves is at the address that is returned, plus rank parts, until the next
 * turn. NULL if somebody is gone. */
EXPORT const char *parley_exchange_turn(Exchange *exchange, const char *own, int64_t bytes) {
    exchange->turn++;
    memcpy(part(exchange, exchange->rank), own, (size_t)bytes);
    return turn_over(exchange) ? NULL : part(exchange, 0);
}

/* Add up what all have, in the order of ranks, so that all have the same bits; a `Reduce` of layer.h. */
EXPORT int parley_exchange_add(void *context, float *values, int64_t count) {
    Exchange *exchange = context;
    const int64_t most = exchange->size / (int64_t)sizeof(float);
    for (int64_t first = 0; first < count; first += most) {
        const int64_t n = count - first < most ? count - first : most;
        const char *parts = parley_exchange_turn(exchange, (const char *)(values + first), n * (int64_t)sizeof(float));
        if (!parts) return -1;
        float *out = values + first;
        const float *one = (const float *)parts, *other = (const float *)(parts + exchange->size);
        for (int64_t i = 0; i < n; i++) out[i] = one[i] + other[i];
        for (int32_t rank = 2; rank < exchange->count; rank++) {
            other = (const float *)(parts + rank * exchange->size);
            for (int64_t i = 0; i < n; i++) out[i] += other[i];
        }
    }
    return 0;
}
