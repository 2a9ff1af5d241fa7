// exp, logistic and tanh on vectors, to about one unit in the last place of single precision
// (polynomials of the Cephes library).

static inline vf exp_of(vf x) {
    vf low = splat<vf>(-87.33654f), high = splat<vf>(88.02969f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    // Adding 1.5 * 2^23 rounds to an integer, left in the low bits.
    vf magic = splat<vf>(12582912.0f), shifted = x * splat<vf>(1.44269504f) + magic;
    vf n = shifted - magic;
    vf r = x - n * splat<vf>(0.693359375f) + n * splat<vf>(2.12194440e-4f);
    vf p = splat<vf>(1.9875691500e-4f);
    p = p * r + splat<vf>(1.3981999507e-3f);
    p = p * r + splat<vf>(8.3334519073e-3f);
    p = p * r + splat<vf>(4.1665795894e-2f);
    p = p * r + splat<vf>(1.6666665459e-1f);
    p = p * r + splat<vf>(5.0000001201e-1f);
    p = p * (r * r) + r + splat<vf>(1.0f);
    return (vf)((vi)p + (((vi)shifted - (vi)magic) << 23));
}

static inline vf logistic_of(vf x) {
    vf one = splat<vf>(1.0f);
    return one / (one + exp_of(-x));
}

static inline vf tanh_of(vf x) {
    vf one = splat<vf>(1.0f), two = splat<vf>(2.0f), z = x * x;
    vi sign = (vi)x & (vi{} + INT32_MIN);
    vf size = (vf)((vi)x ^ sign);
    vf p = splat<vf>(-5.70498872745e-3f);
    p = p * z + splat<vf>(2.06390887954e-2f);
    p = p * z + splat<vf>(-5.37397155531e-2f);
    p = p * z + splat<vf>(1.33314422036e-1f);
    p = p * z + splat<vf>(-3.33332819422e-1f);
    vf small = p * z * x + x;
    vf large = one - two / (exp_of(two * size) + one);
    return size < splat<vf>(0.625f) ? small : (vf)((vi)large | sign);
}
