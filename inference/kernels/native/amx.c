/* The shapes of AMX's tiles. A thread keeps one through a task, as giving it takes as long as multiplying a dozen. */
#include "amx.h"

#if defined(HAS_AMX)
#pragma GCC target("amx-tile")
#include <immintrin.h>

#define TILES 8

typedef struct TileShape {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShape;

enum For { NOTHING, LINEAR, ATTENTION };

static _Thread_local struct {
    enum For what;
    int64_t first, second;
} shaped;

static int begin(enum For what, int64_t first, int64_t second) {
    if (shaped.what == what && shaped.first == first && shaped.second == second) return 0;
    shaped.what = what;
    shaped.first = first;
    shaped.second = second;
    return 1;
}

static void load(const int64_t rows[TILES], int64_t narrow) {
    TileShape shape = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        shape.rows[i] = (uint8_t)rows[i];
        shape.row_bytes[i] = i == narrow ? AMX_BYTES / 2 : AMX_BYTES;
    }
    __asm__ volatile("" ::"r"(&shape) : "memory"); /* GCC takes the next for a reader of eight bytes */
    _tile_loadconfig(&shape);
}

void amx_shape_linear(int64_t first_rows, int64_t second_rows) {
    const int64_t a = first_rows, b = second_rows, w = AMX_ROWS;
    if (begin(LINEAR, a, b)) load((const int64_t[TILES]){a, a, b, b, a, b, w, w}, -1);
}

void amx_shape_attention(int64_t rows) {
    const int64_t r = rows, k = AMX_ROWS, v = AMX_ROWS / 2; /* values lie in pairs of a page's 16 */
    if (begin(ATTENTION, r, 0)) load((const int64_t[TILES]){r, r, r, r, r, r, k, v}, 5);
}

void amx_release(void) {
    if (shaped.what == NOTHING) return;
    shaped.what = NOTHING;
    _tile_release();
}
#endif
