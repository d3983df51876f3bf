/* int8 without its lower two bits, which are zeros (linear.h): packing and unpacking. */
#include "linear.h"

#define SHARES 3 /* lines that hold the fourth's bits */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t eights(const Linear *linear) { return (linear->k + EIGHT - 1) / EIGHT; }

/* The place of (output, k) in eight k of int8's panel. */
static int place_of(int output, int k) { return k / 4 * 4 * PANEL + output * 4 + k % 4; }

/* Into eight k of zeros. */
static void put(uint8_t *lines, int place, uint8_t bits) {
    uint8_t *at = lines + place % 64;
    if (place / 64 < SHARES)
        at[place / 64 * 64] |= bits & 0xfc;
    else
        for (int i = 0; i < SHARES; i++) at[i * 64] |= bits >> (6 - 2 * i) & 3;
}

static uint8_t get(const uint8_t *lines, int place) {
    const uint8_t *at = lines + place % 64;
    if (place / 64 < SHARES) return at[place / 64 * 64] & 0xfc;
    return (uint8_t)(at[0] << 6 | (at[64] & 3) << 4 | (at[128] & 3) << 2);
}

void int6_pack_panel(const Packing *packing, int64_t panel) {
    const Linear *linear = packing->linear;
    int64_t rows = smaller(linear->n - panel * PANEL, PANEL);
    const uint8_t *w = (const uint8_t *)packing->rows + panel * PANEL * linear->k;
    uint8_t *lines = (uint8_t *)packing->packed + panel * eights(linear) * EIGHT_BYTES;
    for (int64_t k = 0; k < linear->k; k++)
        for (int64_t row = 0; row < rows; row++)
            put(lines + k / EIGHT * EIGHT_BYTES, place_of((int)row, (int)(k % EIGHT)), w[row * linear->k + k]);
}

void int6_unpack_row(const Linear *linear, int64_t n, int8_t *row) {
    const uint8_t *lines = (const uint8_t *)linear->packed + n / PANEL * eights(linear) * EIGHT_BYTES;
    for (int64_t k = 0; k < linear->k; k++)
        row[k] = (int8_t)get(lines + k / EIGHT * EIGHT_BYTES, place_of((int)(n % PANEL), (int)(k % EIGHT)));
}
