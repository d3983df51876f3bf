/* Template (see vector.h): the likeliest token of each row, and its logit, as the head gives them, without all of the
 * head's products.
 *
 * A copy of the head in 8 or 6 bits gives every logit but for an error, and the Cauchy-Schwarz inequality bounds it:
 * with x' what it takes for the input x and w' what it has for a row w, |xw - x'w'| <= |x| |w - w'| + |x - x'| |w'|.
 * What can't be the greatest is out, and of what is left the head itself computes whole panels, in whose logits are
 * the bits that they have in any case. If of any row too much is left, all rows are computed in full. */

#define SCREEN_ROWS 48 /* of a tile */
#define LEAST_NORM 1e-12f /* of a row: below, the squares of its parts begin to be nothing in float32 */
#define MOST_NORM 1e15f   /* and above, products with a head's row begin to be infinite */
#define FLUSHED 1e-30f    /* more than all that is lost of a logit where small numbers count as zero */

/* What a head that rounds its inputs reads of a number. */
INLINE float ISA(rounded)(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A number of a row of inputs as inputs.inc.h lays them: for AVX2 int16 less 128, the even ones of four first; for
 * VPDPBUSD bytes with 128 added. Where neither is, no screen is made. */
INLINE int ISA(integer_at)(const void *taken, int64_t i) {
#if NATIVE_ISA == 1
    return ((const int16_t *)taken)[(i & ~3) + (i & 1) * 2 + (i >> 1 & 1)] + 128;
#else
    return (int)((const uint8_t *)taken)[i] - 128;
#endif
}

/* The norms of what the head reads of a row, and of what the screen's input leaves out of it. */
static void ISA(measure)(const StackCall *call, const Screening *s, int64_t row) {
    const Linear *head = call->ends->head;
    int rounds = linear_rounds_input(call->library, head), same = shares_input(call->ends);
    const float *x = call->stack->normed + row * head->k;
    float scale;
    const void *taken = linear_integer_row(call->library, call->ends->screen->linear, s->prepared, s->rows, row, &scale);
    vf whole = vzero(), left = vzero();
    float xs[LANES], ls[LANES];
    for (int64_t i = 0; i < head->k; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            int64_t at = i + lane;
            float read = at < head->k ? scale * (float)ISA(integer_at)(taken, at) : 0.0f;
            xs[lane] = at >= head->k || same ? read : rounds ? ISA(rounded)(x[at]) : x[at];
            ls[lane] = xs[lane] - read;
        }
        vf a = vload(xs), b = vload(ls);
        whole = vfma(a, a, whole);
        left = vfma(b, b, left);
    }
    s->norms[row] = __builtin_sqrtf(vsum(whole));
    s->lost[row] = __builtin_sqrtf(vsum(left));
}

/* How far a row's logits may be from what the screen says, a little more for the rounding of float32: of each row of
 * the head, `error` times what it lost, and `kept` times its norm. */
typedef struct {
    vf error, kept;
} ISA(Doubt);

INLINE ISA(Doubt) ISA(doubt)(const Screening *s, int64_t row, int64_t k) {
    float norm = s->norms[row], lost = s->lost[row], rounding = (2 * (float)k + 16) / 16777216.0f * (norm + lost);
    return (ISA(Doubt)){vset1(1.002f * norm + rounding), vset1(1.002f * lost + rounding)};
}

/* What a row's greatest logit in a panel is at least and at most, by the screen. */
static void ISA(screen_panel)(const StackCall *call, const Screening *s, int64_t first, int64_t last, int64_t panel) {
    const Screen *screen = call->ends->screen;
    const Linear *linear = screen->linear;
    float y[SCREEN_ROWS * PANEL] __attribute__((aligned(64)));
    Input input = {.prepared = s->prepared, .rows = s->rows};
    int64_t columns = linear->n - panel * PANEL, panels = linear_panels(linear);
    if (columns < PANEL)
        for (int i = 0; i < SCREEN_ROWS * PANEL; i++) y[i] = -__builtin_inff();
    linear_tile(call->library, linear, &input, first, last, panel, panel + 1, y - first * PANEL - panel * PANEL, PANEL);
    for (int64_t row = first; row < last; row++) {
        const ISA(Doubt) doubt = ISA(doubt)(s, row, linear->k);
        vf sure = vset1(-__builtin_inff()), possible = sure;
        for (int i = 0; i < PANEL; i += LANES) {
            vf error = vload(screen->errors + panel * PANEL + i), kept = vload(screen->norms + panel * PANEL + i);
            vf logits = vload(y + (row - first) * PANEL + i), apart = vfma(error, doubt.error, vset1(FLUSHED));
            apart = vfma(kept, doubt.kept, apart);
            sure = vmax(logits - apart, sure);
            possible = vmax(logits + apart, possible);
        }
        s->sure[row * panels + panel] = vhmax(sure);
        s->possible[row * panels + panel] = vhmax(possible);
    }
}

/* The greatest of a row's logits in a panel, by the head itself. */
static Part ISA(exact_panel)(const StackCall *call, const Input *input, int64_t row, int64_t panel) {
    const Linear *head = call->ends->head;
    float y[PANEL] __attribute__((aligned(64)));
    int64_t first = panel * PANEL, columns = ISA(least)(PANEL, head->n - first);
    linear_tile(call->library, head, input, row, row + 1, panel, panel + 1, y - row * PANEL - first, PANEL);
    Part best = {.index = first, .maximum = y[0]};
    for (int64_t column = 1; column < columns; column++)
        if (y[column] > best.maximum) best = (Part){.index = first + column, .maximum = y[column]};
    return best;
}

static Part ISA(greater)(Part a, Part b) {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    return b.maximum > a.maximum || (b.maximum == a.maximum && b.index < a.index) ? b : a;
}

/* A row's greatest logit in the panel that promises most, and which others may hold a greater one: none at all if they
 * are too many, or the row is of no ordinary size. */
static void ISA(find_candidates)(const StackCall *call, const Screening *s, const Input *input, int64_t row) {
    int64_t panels = linear_panels(call->ends->screen->linear), promising = -1;
    const float *sure = s->sure + row * panels, *possible = s->possible + row * panels;
    float most = -__builtin_inff();
    for (int64_t panel = 0; panel < panels; panel++)
        if (sure[panel] > most) most = sure[panel], promising = panel;
    s->counts[row] = -1;
    if (!(s->norms[row] > LEAST_NORM && s->norms[row] < MOST_NORM)) return;
    if (!(most > -__builtin_inff() && most < __builtin_inff())) return;
    Part found = ISA(exact_panel)(call, input, row, promising);
    int32_t count = 0;
    for (int64_t panel = 0; panel < panels; panel++) {
        if (possible[panel] < found.maximum || panel == promising) continue;
        if (count == SCREEN_MOST) return;
        s->candidates[row * SCREEN_MOST + count++] = (int32_t)panel;
    }
    s->parts[row * SCREEN_PARTS] = found;
    s->counts[row] = count;
}

/* The greatest logit of a part of a row's other candidates. */
static void ISA(decide_part)(const StackCall *call, const Screening *s, const Input *input, int64_t row, int64_t part) {
    Part best = {.index = -1};
    for (int32_t i = (int32_t)part - 1; i < s->counts[row]; i += SCREEN_PARTS - 1)
        best = ISA(greater)(best, ISA(exact_panel)(call, input, row, s->candidates[row * SCREEN_MOST + i]));
    s->parts[row * SCREEN_PARTS + part] = best;
}

/* What the parts say together; returns whether a row is left of which they say nothing. */
static int ISA(decide)(const Screening *s, const Statistics *found) {
    int left = 0;
    for (int64_t row = 0; row < s->rows; row++) {
        Part best = {.index = -1};
        for (int part = 0; part < SCREEN_PARTS && s->counts[row] >= 0; part++)
            best = ISA(greater)(best, s->parts[row * SCREEN_PARTS + part]);
        left |= best.index < 0;
        found->indices[row] = best.index;
        found->maxima[row] = found->sums[row] = best.maximum;
    }
    return left;
}

/* A head's input is there, and so is the screen's: find each row's greatest logit. */
static void ISA(screen_rows)(Worker *worker, const StackCall *call, const Input *input) {
    const Screening *s = &call->stack->screening;
    int64_t panels = linear_panels(call->ends->head), blocks = ISA(blocks)(s->rows, SCREEN_ROWS);
    for (int64_t i; (i = pool_near_tile(worker, blocks * panels)) >= 0;) {
        int64_t first = i % blocks * SCREEN_ROWS;
        ISA(screen_panel)(call, s, first, ISA(least)(first + SCREEN_ROWS, s->rows), i / blocks);
    }
    pool_barrier(worker);
    for (int64_t row; (row = pool_tile(worker, s->rows)) >= 0;) ISA(find_candidates)(call, s, input, row);
    pool_barrier(worker);
    for (int64_t i; (i = pool_tile(worker, s->rows * (SCREEN_PARTS - 1))) >= 0;)
        ISA(decide_part)(call, s, input, i / (SCREEN_PARTS - 1), i % (SCREEN_PARTS - 1) + 1);
    pool_barrier(worker);
    for (int64_t only; (only = pool_tile(worker, 1)) >= 0;) *s->left = ISA(decide)(s, &call->tokens->statistics);
    pool_barrier(worker);
}
