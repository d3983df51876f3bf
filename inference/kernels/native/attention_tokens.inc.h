/* Template (see vector.h): what becomes of a token's heads between the linear and the attention, and how its key and
 * value are written. */
#include "attention.h"

/* Shaping: norm and rotation of one head. -------------------------------------------------------- */
INLINE const float *ISA(head_of)(const Heads *heads, int64_t row, int64_t head) {
    return heads->first + row * heads->row_stride + head * heads->head_stride;
}

/* `rotation`: the row of the tables. */
INLINE void ISA(shape_head)(const Shaping *shaping, const Heads *heads, int64_t row, int64_t rotation, int64_t head,
                            int64_t dim, const float *norm, int64_t norm_size, float *out) {
    const float *x = ISA(head_of)(heads, row, head);
    const int late = norm && shaping->late;
    if (!norm || late)
        memcpy(out, x, (size_t)dim * sizeof(float));
    else if (shaping->centred) {
        const float *weights = norm + (norm_size == dim ? 0 : head * dim);
        ISA(centred_norm)(x, weights, weights + norm_size, dim, shaping->eps, out);
    } else if (norm_size == dim)
        ISA(apply_norm)(x, ISA(rms_scale)(x, dim, shaping->eps), norm, dim, out);
    else {
        float scale = ISA(rms_scale)(ISA(head_of)(heads, row, 0), norm_size, shaping->eps);
        ISA(apply_norm)(x, scale, norm + head * dim, dim, out);
    }
    if (shaping->cosines) {
        int64_t at = rotation * shaping->rotary_dim;
        ISA(rotate)(out, shaping->cosines + at, shaping->sines + at, shaping->rotary_dim, shaping->interleaved);
    }
    if (late) {
        const float *weights = norm + (norm_size == dim ? 0 : head * dim);
        if (shaping->centred)
            ISA(centred_norm)(out, weights, weights + norm_size, dim, shaping->eps, out);
        else
            ISA(apply_norm)(out, ISA(rms_scale)(out, dim, shaping->eps), norm, dim, out);
    }
}

INLINE void ISA(keep_key)(const float *key, const Cache *cache, int64_t block, int64_t at) {
    int64_t first = block * key_numbers(cache) * PAGE, dim = cache->key_dim;
    float *floats = (float *)cache->keys + first;
    uint16_t *words = (uint16_t *)cache->keys + first;
    if (!is_narrow(cache))
        for (int64_t d = 0; d < dim; d++) floats[d * PAGE + at] = key[d];
    else
        for (int64_t d = 0; d < key_numbers(cache); d++)
            words[(d / 2 * PAGE + at) * 2 + d % 2] = d < dim ? round_bf16(key[d]) : 0;
}

INLINE void ISA(keep_value)(const float *value, const Cache *cache, int64_t block, int64_t at) {
    int64_t dim = cache->value_dim, first = block * PAGE * dim;
    uint16_t *words = (uint16_t *)cache->values + first + at / 2 * dim * 2 + at % 2;
    if (!is_narrow(cache))
        memcpy((float *)cache->values + first + at * dim, value, (size_t)dim * sizeof(float));
    else
        for (int64_t d = 0; d < dim; d++) words[d * 2] = round_bf16(value[d]);
}

static void ISA(write_token)(const AttentionCall *call, const Tile *tile, int64_t query, int64_t kv_head, float *head) {
    const Cache *cache = &call->cache;
    int64_t position = tile->position + query, row = tile->row + query, at = position % PAGE;
    int64_t block = tile->pages[position / PAGE] * cache->kv_heads + kv_head;
    ISA(shape_head)(&call->shaping, &call->key, row, call->shaping.by_position ? position : row, kv_head,
                    cache->key_dim, call->shaping.key_norm, call->shaping.key_norm_size, head);
    ISA(keep_key)(head, cache, block, at);
    if (!cache->latent) ISA(keep_value)(ISA(head_of)(&call->value, row, kv_head), cache, block, at);
}
