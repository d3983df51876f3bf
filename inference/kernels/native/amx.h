/* AMX's tiles: how they are shaped, by the thread that is to multiply by them. */
#ifndef PARLEY_AMX_H
#define PARLEY_AMX_H

#include "native.h"

#define AMX_ROWS 16  /* of a tile, at most */
#define AMX_BYTES 64 /* of its rows, at most */

#if defined(HAS_AMX)
/* For linears. Tiles 0 to 3: sums of the first and of the second rows, two of outputs each; 4, 5: their inputs; 6, 7:
 * weights. */
void amx_shape_linear(int64_t first_rows, int64_t second_rows);

/* For attention. Tiles 0 to 3: sums of the same rows; 4: queries; 5: weights of a page's positions; 6: keys; 7: values. */
void amx_shape_attention(int64_t rows);

/* Between what is written by other instructions and tiles that are loaded from it: GCC doesn't see what these read. */
static inline void amx_memory_is_written(void) { __asm__ volatile("" ::: "memory"); }

/* At the end of a task: its tiles are not kept for the thread any longer. */
void amx_release(void);
#else
static inline void amx_release(void) {}
#endif

#endif
