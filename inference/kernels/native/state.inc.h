/* Template (see vector.h): one sequence's part of a layer that keeps a state. */
#include "state.h"

#include <math.h>

#define VECTORS (STATE_BLOCK / LANES)
#if NATIVE_ISA == 1
#define SUMS 2 /* that a product is added up in, so that none waits for the one before */
#else
#define SUMS 4
#endif
#define TOGETHER 16 /* tokens whose queries and keys lie ready */

INLINE int64_t ISA(first_token)(const Runs *runs, int64_t run) { return run ? runs->ends[run - 1] : 0; }

/* Of channels from c on the input of the sequence's token `from` + `at`, which may be before the step's: then it is
 * kept as it was convolved, or zeros before the sequence's beginning. */
INLINE vf ISA(input)(const ConvolutionCall *call, const float *kept, int64_t from, int64_t at, int64_t c, int64_t left) {
    int64_t row = (from + at) * call->stride + c;
    if (at < 0) return kept ? vload_part(kept + (at + call->taps - 1) * call->channels + c, left) : vzero();
    vf x = vload_part(call->x + row, left);
    if (call->before) x *= vload_part(call->before + row, left);
    return x;
}

void ISA(convolution_tile)(const void *argument, int64_t run, int64_t first, int64_t last) {
    const ConvolutionCall *call = argument;
    const Runs *runs = call->runs;
    int64_t from = ISA(first_token)(runs, run), tokens = runs->ends[run] - from, recent = call->taps - 1;
    int64_t size = recent * call->channels;
    const float *kept = runs->reads[run] < 0 ? NULL : call->recent + runs->reads[run] * size;
    float *next = call->recent + runs->writes[run] * size;
    for (int64_t t = 0; t < tokens; t++) {
        float *out = call->out + (from + t) * call->channels;
        int64_t begin = kept || t >= recent ? 0 : recent - t; /* of the taps: those before it are of nothing */
        for (int64_t c = first; c < last; c += LANES) {
            int64_t left = last - c;
            vf sum = call->bias ? vload_part(call->bias + c, left) : vzero();
            for (int64_t j = begin; j < call->taps; j++) {
                vf x = ISA(input)(call, kept, from, t - recent + j, c, left);
                sum = vfma(vload_part(call->kernel + j * call->channels + c, left), x, sum);
            }
            if (call->silu) sum = ISA(silu)(sum);
            if (call->behind) sum *= vload_part(call->behind + (from + t) * call->stride + c, left);
            vstore_part(out + c, left, sum);
        }
    }
    for (int64_t i = 0; i < recent; i++)
        for (int64_t c = first; c < last; c += LANES) {
            vf x = ISA(input)(call, kept, from, tokens - recent + i, c, last - c);
            vstore_part(next + i * call->channels + c, last - c, x);
        }
}

/* log(1 + e^x): of what is at most one, by the series of the area tangent. */
INLINE vf ISA(softplus)(vf x) {
    vf e = vexp(vzero() - vabs(x)), s = e / (e + vset1(2.0f)), square = s * s;
    vf p = vset1(2.0f / 15);
    p = vfma(p, square, vset1(2.0f / 13));
    p = vfma(p, square, vset1(2.0f / 11));
    p = vfma(p, square, vset1(2.0f / 9));
    p = vfma(p, square, vset1(2.0f / 7));
    p = vfma(p, square, vset1(2.0f / 5));
    p = vfma(p, square, vset1(2.0f / 3));
    p = vfma(p, square, vset1(2.0f));
    return vfma(p, s, vmax(x, vzero()));
}

void ISA(scan_tile)(const void *argument, int64_t run, int64_t first, int64_t last) {
    const ScanCall *call = argument;
    const Runs *runs = call->runs;
    int64_t from = ISA(first_token)(runs, run), stop = runs->ends[run], n = call->channels, size = call->keys * n;
    float *state = call->states + runs->writes[run] * size;
    const float *old = runs->reads[run] < 0 ? NULL : call->states + runs->reads[run] * size;
    for (int64_t t = from; t < stop; t++, old = state) {
        const float *into = call->into + t * call->into_stride, *by = call->by + t * call->by_stride;
        for (int64_t c = first; c < last; c += LANES) {
            int64_t left = last - c;
            vf x = vload_part(call->x + t * n + c, left);
            vf step = vload_part(call->steps + t * call->steps_stride + c, left);
            vf share = ISA(softplus)(step + vload_part(call->step_biases + c, left)), new = share * x;
            vf sum = vload_part(call->skips + c, left) * x;
            for (int64_t key = 0; key < call->keys; key++) {
                vf now = new * vset1(into[key]);
                if (old) {
                    vf decay = vexp(vload_part(call->rates + key * n + c, left) * share);
                    now = vfma(vload_part(old + key * n + c, left), decay, now);
                }
                vstore_part(state + key * n + c, left, now);
                sum = vfma(vset1(by[key]), now, sum);
            }
            vf gate = ISA(silu)(vload_part(call->gates + t * call->gates_stride + c, left));
            vstore_part(call->out + t * n + c, left, sum * gate);
        }
    }
}

/* Queries and keys of some tokens of one head, and how much of the state stays, and of what is new comes. */
typedef struct {
    float queries[TOGETHER][MOST_STATE_KEYS], keys[TOGETHER][MOST_STATE_KEYS];
    float decays[TOGETHER], shares[TOGETHER];
} ISA(Ready);

/* x, of the length `by`. */
INLINE void ISA(unit)(const float *x, int64_t n, float by, float *out) {
    const vf scale = vset1(by / sqrtf(ISA(sum_of_squares)(x, n) + 1e-6f));
    for (int64_t i = 0; i < n; i += LANES) vstore_part(out + i, n - i, vload_part(x + i, n - i) * scale);
}

static void ISA(make_ready)(const RecurrenceCall *call, int64_t from, int64_t count, int64_t head, ISA(Ready) *ready) {
    int64_t dim = call->key_dim, shared = head / (call->value_heads / call->key_heads) * dim;
    for (int64_t t = 0; t < count; t++) {
        const float *query = call->queries + (from + t) * call->stride + shared;
        const float *key = call->keys + (from + t) * call->stride + shared;
        float step = call->steps[(from + t) * call->steps_stride + head] + call->step_biases[head];
        float soft = step > 20.0f ? step : log1pf(expf(step));
        if (call->shares) {
            float share = call->shares[(from + t) * call->shares_stride + head];
            ready->shares[t] = call->scale / (1.0f + expf(-share));
            ISA(unit)(query, dim, 1.0f / sqrtf((float)dim), ready->queries[t]);
            ISA(unit)(key, dim, 1.0f, ready->keys[t]);
        } else {
            soft = fminf(fmaxf(soft, call->least), call->most);
            ready->shares[t] = soft;
            memcpy(ready->queries[t], query, (size_t)dim * sizeof(float));
            memcpy(ready->keys[t], key, (size_t)dim * sizeof(float));
        }
        ready->decays[t] = expf(call->rates[head] * soft);
    }
}

/* What a block of the state, (keys, STATE_BLOCK), says of a key. */
INLINE void ISA(recall)(const float *state, int64_t keys, const float *key, vf known[VECTORS]) {
    vf sums[SUMS][VECTORS] = {{vzero()}};
    for (int64_t i = 0; i < keys; i += SUMS)
        UNROLL for (int s = 0; s < SUMS; s++) {
            const vf by = vset1(key[i + s]);
            UNROLL for (int v = 0; v < VECTORS; v++)
                sums[s][v] = vfma(by, vload(state + (i + s) * STATE_BLOCK + v * LANES), sums[s][v]);
        }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        known[v] = sums[0][v];
        UNROLL for (int s = 1; s < SUMS; s++) known[v] += sums[s][v];
    }
}

/* One token of a block of the state: from `old`, NULL for zeros, to `state`, which may be the same. `value`, `out`:
 * STATE_BLOCK numbers. */
INLINE void ISA(recur)(const float *old, float *state, int64_t keys, const ISA(Ready) *ready, int64_t at, int corrects,
                       const float *value, float *out) {
    const float *query = ready->queries[at], *key = ready->keys[at];
    const vf stays = vset1(ready->decays[at]), share = vset1(ready->shares[at]);
    vf sums[SUMS][VECTORS] = {{vzero()}}, news[VECTORS], known[VECTORS];
    if (corrects && old) ISA(recall)(old, keys, key, known);
    UNROLL for (int v = 0; v < VECTORS; v++) {
        news[v] = vload(value + v * LANES);
        if (corrects && old) news[v] -= known[v] * stays;
        news[v] *= share;
    }
    for (int64_t i = 0; i < keys; i += SUMS)
        UNROLL for (int s = 0; s < SUMS; s++) {
            const vf into = vset1(key[i + s]), by = vset1(query[i + s]);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                int64_t place = (i + s) * STATE_BLOCK + v * LANES;
                vf now = into * news[v];
                if (old) now = vfma(into, news[v], vload(old + place) * stays);
                vstore(state + place, now);
                sums[s][v] = vfma(by, now, sums[s][v]);
            }
        }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        UNROLL for (int s = 1; s < SUMS; s++) sums[0][v] += sums[s][v];
        vstore(out + v * LANES, sums[0][v]);
    }
}

/* out = norm * out / its root mean square * silu(gate) */
INLINE void ISA(gated_norm)(const RecurrenceCall *call, const float *gate, float *out) {
    int64_t n = call->value_dim;
    const vf scale = vset1(ISA(rms_scale)(out, n, call->eps));
    for (int64_t i = 0; i < n; i += LANES) {
        vf by = vload_part(call->norm + i, n - i) * ISA(silu)(vload_part(gate + i, n - i));
        vstore_part(out + i, n - i, vload_part(out + i, n - i) * scale * by);
    }
}

INLINE void ISA(add_skip)(float skip, const float *value, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += LANES)
        vstore_part(out + i, n - i, vfma(vset1(skip), vload_part(value + i, n - i), vload_part(out + i, n - i)));
}

/* Some tokens of one head. `state`: what follows; `old`: what was before, which may be the same, NULL for zeros. */
INLINE void ISA(recur_all)(const RecurrenceCall *call, int64_t head, int64_t from, int64_t count, const float *old,
                           float *state, int corrects) {
    int64_t keys = call->key_dim, width = call->value_dim, heads = call->value_heads;
    ISA(Ready) ready;
    ISA(make_ready)(call, from, count, head, &ready);
    for (int64_t first = 0, at = 0; first < width; first += STATE_BLOCK, at += keys * STATE_BLOCK) {
        size_t bytes = (size_t)(width - first < STATE_BLOCK ? width - first : STATE_BLOCK) * sizeof(float);
        float value[STATE_BLOCK] = {0}, found[STATE_BLOCK];
        const float *before = old ? old + at : NULL;
        for (int64_t i = 0; i < count; i++, before = state + at) {
            memcpy(value, call->values + (from + i) * call->stride + head * width + first, bytes);
            ISA(recur)(before, state + at, keys, &ready, i, corrects, value, found);
            memcpy(call->out + ((from + i) * heads + head) * width + first, found, bytes);
        }
    }
}

void ISA(recurrence_tile)(const RecurrenceCall *call, int64_t run, int64_t head) {
    const Runs *runs = call->runs;
    int64_t from = ISA(first_token)(runs, run), stop = runs->ends[run], heads = call->value_heads;
    int64_t width = call->value_dim, blocks = (width + STATE_BLOCK - 1) / STATE_BLOCK;
    int64_t size = blocks * call->key_dim * STATE_BLOCK;
    float *state = call->states + (runs->writes[run] * heads + head) * size;
    const float *old = runs->reads[run] < 0 ? NULL : call->states + (runs->reads[run] * heads + head) * size;
    for (int64_t t = from; t < stop; t += TOGETHER, old = state) {
        int64_t count = stop - t < TOGETHER ? stop - t : TOGETHER;
        if (call->shares)
            ISA(recur_all)(call, head, t, count, old, state, 1);
        else
            ISA(recur_all)(call, head, t, count, old, state, 0);
    }
    for (int64_t t = from; t < stop; t++) {
        float *out = call->out + (t * heads + head) * width;
        if (call->shares)
            ISA(gated_norm)(call, call->gates + t * call->gates_stride + head * width, out);
        else
            ISA(add_skip)(call->skips[head], call->values + t * call->stride + head * width, width, out);
    }
}
