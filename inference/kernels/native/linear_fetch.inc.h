/* The template of what linears fetch ahead of their use. */

/* Bytes. With 2 KiB memory wasn't asked for enough at once on Zen 5: linears of 8 rows took up to 1.5 times as long in
 * float32 and 1.3 times with rounded inputs, of one row 1.05 to 1.2 times; less while others used the same memory. */
#define AHEAD (NATIVE_ISA == 2 ? 12288 : 2048)
#define FAR_AHEAD 8192 /* bytes, in a panel that doesn't end soon: 4 and 16 KiB gained less (Zen 5) */

/* Two lines of weights ahead, further than the hardware looks: with several rows, 16-bit weights came half as fast
 * without (Zen 4); int8 gained nothing. */
INLINE void prefetch(const void *w) {
    __builtin_prefetch((const char *)w + AHEAD);
    __builtin_prefetch((const char *)w + AHEAD + 64);
}

/* The next panel, by the last blocks of this one, or by the first where that alone reads it: what the hardware fetches
 * ahead by itself ends with each short panel, and begins late in the next. */
INLINE void fetch_ahead(const int lines, const Block *b, const char *w) {
    UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(w + b->ahead[i], 0, SOON);
}

/* The same of int8, whose panels are short: into the first cache 8 rows took a twentieth longer (Zen 5). */
INLINE void fetch_ahead_int8(const int lines, const Block *b, const char *w) {
    UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(w + b->ahead[i], 0, 2);
}

/* The same by all blocks, each group of columns its share: several rows of int8 with AVX2, whose products take longer,
 * took up to a third less time (Zen 3). So they did where one block reads a long panel twice, and a later part of that
 * was fetched before; also panels larger than the second cache (640 KiB). One block of bfloat16 took a fifth to a third
 * less, of float32 up to a quarter; two of float32, which wait for products, took up to a tenth longer. What more have
 * is in linear_near.inc.h. */
INLINE void fetch_share(const int vectors, const Block *b, const char *w) {
    const char *at = b->share + ((w - b->w) * b->share_step >> 8);
    UNROLL for (int i = 0; i < vectors / 2; i++) __builtin_prefetch(at + 64 * i, 0, 2);
}

INLINE int fetches_by_shares(const int kind, int64_t rows, int64_t blocks) {
    if (NATIVE_ISA != 1) return 0;
    if (kind == KIND_INT8) return 1;
    return (kind == KIND_BFLOAT16 || kind == KIND_FLOAT32 || kind == KIND_CODED) && rows > FEW_ROWS && blocks == 1;
}

/* Whether a block that reads a panel alone fetches what is AHEAD of its use, not the next panel; int8 took up to 1.3 times
 * as long so (Zen 5). */
INLINE int streams(const int kind, int64_t blocks) {
    return NATIVE_ISA == 2 && blocks == 1 && (kind == KIND_FLOAT32 || kind == KIND_ROUNDED);
}

/* By shares, or ahead: for 128 bytes of a panel. Each group of columns fetches those of all: its own alone were a sixth
 * faster from the second cache, but a tenth to a quarter slower from memory (Zen 3, 8 rows of float32). */
INLINE void fetch(const int vectors, const Block *b, const char *w) {
    if (NATIVE_ISA == 1 && b->share_step) {
        fetch_share(vectors, b, w);
        return;
    }
    prefetch(w);
    fetch_ahead(2, b, w);
}

/* The same for the 192 bytes of a quad. */
INLINE void fetch_quad(const int vectors, const Block *b, const char *w) {
    if (NATIVE_ISA == 1 && b->share_step) {
        fetch_share(vectors, b, w);
        fetch_share(vectors, b, w + 96);
        return;
    }
    prefetch(w);
    __builtin_prefetch(w + AHEAD + 128);
    fetch_ahead(3, b, w);
}
