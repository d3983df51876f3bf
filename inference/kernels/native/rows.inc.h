/* The template of row statistics: one part of a row, which the caches hold while it is read twice. */
#include "rows.h"

/* The lowest index of what equals the maximum, or of the first NaN if `maximum` is NaN. */
INLINE int64_t index_of(const float *x, int64_t count, float maximum) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) { /* skip what has none */
        vf v = vload(x + i);
        vi hit = (v == vset1(maximum)) | (v != v);
        int32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= hit[lane];
        if (any) break;
    }
    while (i < count - 1 && x[i] != maximum && x[i] == x[i]) i++;
    return i;
}

Part ISA(part_of_row)(const float *x, int64_t count) {
    vf most = vset1(-__builtin_inff()), strange = vzero();
    for (int64_t i = 0; i < count; i += LANES) {
        vf v = i + LANES <= count ? vload(x + i) : vselect(vfirst_mask(count - i), vload_part(x + i, count - i), most);
        most = vmax(v, most); /* a NaN in v is passed over, */
        strange = (vf)((vi)strange | (v != v)); /* but seen */
    }
    float maximum = vhmax(most);
    for (int lane = 0; lane < LANES; lane++)
        if (((vi)strange)[lane]) maximum = __builtin_nanf("");
    Part part = {.index = index_of(x, count, maximum), .maximum = maximum};
    if (!(maximum > -__builtin_inff() && maximum < __builtin_inff())) return part;
    vf sums[4] = {vzero(), vzero(), vzero(), vzero()};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int j = 0; j < 4; j++) sums[j] += vexp(vload(x + i + j * LANES) - vset1(maximum));
    for (; i < count; i += LANES) {
        vf e = vexp(vload_part(x + i, count - i) - vset1(maximum));
        sums[0] += vselect(vfirst_mask(count - i), e, vzero());
    }
    part.sum = vsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return part;
}
