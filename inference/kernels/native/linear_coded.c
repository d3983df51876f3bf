/* bfloat16 in 12 bits (linear.h): which exponents a panel has codes for, packing and unpacking. */
#include "linear.h"

#include <string.h>

#define EXPONENTS 256
#define CODES 16

static int exponent_of(uint16_t bits) { return bits >> 7 & 0xff; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where the words of two k of bfloat16's panel have their bytes in a line: a vector of these is for two of words. */
typedef struct Line {
    uint8_t at[2 * PANEL];
} Line;

static Line line_of(const Linear *linear) {
    Line line;
    int words = 2 * (int)linear->lanes;
    for (int i = 0; i < 2 * PANEL; i++) {
        int of_vector = i % (2 * words), of_words = of_vector % words;
        line.at[i] = (uint8_t)(i - of_vector + of_words / 8 * 16 + of_vector / words * 8 + i % 8);
    }
    return line;
}

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

/* The even base that leaves the fewest out, and how many those are. */
static void survey(Worker *worker, void *argument) {
    Survey *s = argument;
    for (int64_t panel; (panel = pool_tile(worker, linear_panels(s->linear))) >= 0;) {
        int64_t counts[EXPONENTS], all = 0, held = 0, most = -1;
        count_exponents(s, panel, counts);
        for (int i = 0; i < EXPONENTS; i++) {
            all += counts[i];
            held += counts[i] - (i >= CODES ? counts[i - CODES] : 0);
            if (i < CODES - 1 || i % 2 == 0 || held <= most) continue;
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
static void code(const Line *line, uint8_t *quad, int place, int distance, uint16_t bits) {
    int at = line->at[place % 64], code = bits >> 15 << 3 | distance >> 1;
    quad[place / 64 * 64 + at] = (uint8_t)bits;
    quad[128 + at] |= (uint8_t)(code << place / 64 * 4);
}

static uint16_t decode(const Line *line, const uint8_t *quad, int place, int base) {
    int at = line->at[place % 64], code = quad[128 + at] >> place / 64 * 4;
    return (uint16_t)((code & 8) << 12 | (base / 2 + (code & 7)) << 8 | quad[place / 64 * 64 + at]);
}

void coded_pack_panel(const Packing *packing, int64_t panel) {
    const Linear *linear = packing->linear;
    Exception *next = (Exception *)linear->exceptions + linear->firsts[panel];
    int64_t k = linear->k, quads = (k + QUAD - 1) / QUAD;
    int rows = (int)smaller(linear->n - panel * PANEL, PANEL), base = linear->bases[panel];
    const uint16_t *w = (const uint16_t *)packing->rows + panel * PANEL * k;
    const Line line = line_of(linear);
    uint8_t *quad = (uint8_t *)packing->packed + panel * quads * QUAD_BYTES;
    for (int64_t i = 0; i < quads; i++, quad += QUAD_BYTES)
        for (int row = 0; row < rows; row++)
            for (int j = 0; j < smaller(QUAD, k - i * QUAD); j++) {
                uint16_t bits = w[row * k + i * QUAD + j];
                int place = place_of(row, j), distance = exponent_of(bits) - base;
                if (distance >= 0 && distance < CODES)
                    code(&line, quad, place, distance, bits);
                else
                    *next++ = (Exception){.at = (uint32_t)(i * QUAD_WEIGHTS + place), .bits = bits};
            }
    *next = (Exception){.at = NO_EXCEPTION};
}

void coded_unpack_row(const Linear *linear, int64_t n, uint16_t *row) {
    int64_t panel = n / PANEL, quads = (linear->k + QUAD - 1) / QUAD;
    int output = (int)(n % PANEL), base = linear->bases[panel];
    const uint8_t *quad = (const uint8_t *)linear->packed + panel * quads * QUAD_BYTES;
    const Line line = line_of(linear);
    for (int64_t k = 0; k < linear->k; k++)
        row[k] = decode(&line, quad + k / QUAD * QUAD_BYTES, place_of(output, (int)(k % QUAD)), base);
    for (const Exception *e = linear->exceptions + linear->firsts[panel]; e->at != NO_EXCEPTION; e++) {
        int place = (int)(e->at % QUAD_WEIGHTS);
        if (place / 2 % PANEL == output) row[e->at / QUAD_WEIGHTS * QUAD + place / 64 * 2 + place % 2] = e->bits;
    }
}
