/* bfloat16 in 12 bits (linear.h): which exponents a panel has codes for, packing and unpacking. */
#include "linear.h"

#include <string.h>

#define EXPONENTS 256
#define CODES 16

static int exponent_of(uint16_t bits) { return bits >> 7 & 0xff; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where the i-th word of two k of bfloat16's panel has its byte in a line: words i and i + 32 are interleaved. */
static int byte_of(int i) { return i % 32 / 8 * 16 + i / 32 * 8 + i % 8; }

/* The byte of C whose upper half is for byte `at` of B. */
static int before(int at) { return (at & ~3) | ((at - 1) & 3); }

/* The place of (output, k) in four k of bfloat16's panel. */
static int place_of(int output, int k) { return k / 2 * 2 * PANEL + output * 2 + k % 2; }

/* --- which codes ------------------------------------------------------------------------------ */

typedef struct Survey {
    const Linear *linear;
    const uint16_t *rows;
    uint8_t *bases;
    int64_t *counts;
} Survey;

static void count_exponents(const Survey *s, int64_t panel, int64_t counts[EXPONENTS]) {
    int64_t rows = smaller(s->linear->n - panel * PANEL, PANEL);
    const uint16_t *w = s->rows + panel * PANEL * s->linear->k;
    memset(counts, 0, EXPONENTS * sizeof *counts);
    for (int64_t i = 0; i < rows * s->linear->k; i++) counts[exponent_of(w[i])]++;
}

/* The base that leaves the fewest out, and how many those are. */
static void survey(Worker *worker, void *argument) {
    Survey *s = argument;
    for (int64_t panel; (panel = pool_tile(worker, linear_panels(s->linear))) >= 0;) {
        int64_t counts[EXPONENTS], all = 0, held = 0, most = -1;
        count_exponents(s, panel, counts);
        for (int i = 0; i < EXPONENTS; i++) {
            all += counts[i];
            held += counts[i] - (i >= CODES ? counts[i - CODES] : 0);
            if (i < CODES - 1 || held <= most) continue;
            most = held;
            s->bases[panel] = (uint8_t)(i - CODES + 1);
        }
        s->counts[panel] = all - most;
    }
    pool_barrier(worker);
}

/* For each panel of W (n, k), bfloat16: its base, and how many weights have an exponent without a code. */
EXPORT void parley_survey(const Library *library, const Linear *linear, const uint16_t *rows, uint8_t *bases,
                          int64_t *counts) {
    Survey s = {linear, rows, bases, counts};
    pool_run(library, survey, &s, 1);
}

/* --- packing ---------------------------------------------------------------------------------- */

/* Into a quad of zeros. */
static void code(uint8_t *quad, int place, int distance, uint16_t bits) {
    uint8_t *line = quad + place / 64 * 64, *shared = quad + 128;
    int at = byte_of(place % 64), sign = bits >> 15;
    line[at] = (uint8_t)((distance & 1) << 7 | (bits & 0x7f));
    if (place < 64) {
        shared[at] |= (uint8_t)(sign << 7 | distance >> 1);
    } else {
        shared[at] |= (uint8_t)(sign << 3);
        shared[before(at)] |= (uint8_t)(distance >> 1 << 4);
    }
}

static uint16_t decode(const uint8_t *quad, int place, int base) {
    const uint8_t *line = quad + place / 64 * 64, *shared = quad + 128;
    int at = byte_of(place % 64), upper = place < 64 ? shared[at] : shared[at] << 4 | shared[before(at)] >> 4;
    return (uint16_t)(((upper << 8 | line[at]) & 0x87ff) + (base << 7));
}

void coded_pack_panel(const Packing *packing, int64_t panel) {
    const Linear *linear = packing->linear;
    Exception *next = (Exception *)linear->exceptions + linear->firsts[panel];
    int64_t k = linear->k, quads = (k + QUAD - 1) / QUAD;
    int rows = (int)smaller(linear->n - panel * PANEL, PANEL), base = linear->bases[panel];
    const uint16_t *w = (const uint16_t *)packing->rows + panel * PANEL * k;
    uint8_t *quad = (uint8_t *)packing->packed + panel * quads * QUAD_BYTES;
    for (int64_t i = 0; i < quads; i++, quad += QUAD_BYTES)
        for (int row = 0; row < rows; row++)
            for (int j = 0; j < smaller(QUAD, k - i * QUAD); j++) {
                uint16_t bits = w[row * k + i * QUAD + j];
                int place = place_of(row, j), distance = exponent_of(bits) - base;
                if (distance >= 0 && distance < CODES)
                    code(quad, place, distance, bits);
                else
                    *next++ = (Exception){.at = (uint32_t)(i * QUAD_WEIGHTS + place), .bits = bits};
            }
    *next = (Exception){.at = NO_EXCEPTION};
}

void coded_unpack_row(const Linear *linear, int64_t n, uint16_t *row) {
    int64_t panel = n / PANEL, quads = (linear->k + QUAD - 1) / QUAD;
    int output = (int)(n % PANEL), base = linear->bases[panel];
    const uint8_t *quad = (const uint8_t *)linear->packed + panel * quads * QUAD_BYTES;
    for (int64_t k = 0; k < linear->k; k++)
        row[k] = decode(quad + k / QUAD * QUAD_BYTES, place_of(output, (int)(k % QUAD)), base);
    for (const Exception *e = linear->exceptions + linear->firsts[panel]; e->at != NO_EXCEPTION; e++) {
        int place = (int)(e->at % QUAD_WEIGHTS);
        if (place / 2 % PANEL == output) row[e->at / QUAD_WEIGHTS * QUAD + place / 64 * 2 + place % 2] = e->bits;
    }
}
