/* Template (see vector.h): tiles of a linear whose activated numbers are multiplied by a layer's own inputs. */

/* y *= factors, of a panel of rows [first, last) in which `left` columns are there; y is where row 0 would be. */
static void ISA(multiply_tile)(const StackCall *call, const float *factors, float *y, int64_t stride, int64_t first,
                               int64_t last, int64_t left) {
    const int64_t n = ISA(least)(left, PANEL);
    for (int64_t row = first; row < last; row++) {
        const float *by = factors + (call->origins ? call->origins[row] : row) * call->per_layer_stride;
        float *out = y + row * stride;
        for (int64_t i = 0; i < n; i += LANES) vstore_part(out + i, n - i, vload_part(out + i, n - i) * vload_part(by + i, n - i));
    }
}
