// Square roots, and exp, logistic and tanh on vectors, to a few units in the last place of single precision
// (exp: the polynomial of the Cephes library).
#pragma once
#include "vec.hpp"

namespace snip::SNIP_ISA {

static inline vf sqrt_of(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    float lanes[VL];
    store<vf>(lanes, x);
    for (int64_t j = 0; j < VL; j++) lanes[j] = __builtin_sqrtf(lanes[j]);
    return load<vf>(lanes);
#endif
}

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

// Exactly 0 for a gate that is shut so far that no normal number is small enough for it.
static inline vf logistic_of(vf x) {
    vf one = splat<vf>(1.0f);
    return x < splat<vf>(-88.0f) ? splat<vf>(0.0f) : one / (one + exp_of(-x));
}

// tanh by a quotient of polynomials (as in Eigen), good to 5 units in the last place where |x| < 4.
static inline vf small_tanh_of(vf x) {
    vf z = x * x;
    vf p = splat<vf>(-2.76076847742355e-16f);
    p = p * z + splat<vf>(2.00018790482477e-13f);
    p = p * z + splat<vf>(-8.60467152213735e-11f);
    p = p * z + splat<vf>(5.12229709037114e-08f);
    p = p * z + splat<vf>(1.48572235717979e-05f);
    p = p * z + splat<vf>(6.37261928875436e-04f);
    p = p * z + splat<vf>(4.89352455891786e-03f);
    vf q = splat<vf>(1.19825839466702e-06f);
    q = q * z + splat<vf>(1.18534705686654e-04f);
    q = q * z + splat<vf>(2.26843463243900e-03f);
    q = q * z + splat<vf>(4.89352518554385e-03f);
    return z < splat<vf>(1.6e-7f) ? x : x * p / q;  // |x| < 0.0004 is its own tanh
}

// Near +-1 the derivative 1 - tanh^2 is nothing but the distance from 1, so the last bit counts there and
// a saturated unit must have exactly +-1. That costs an exponential, which few vectors need.
static inline vf tanh_of(vf x) {
    vf one = splat<vf>(1.0f), two = splat<vf>(2.0f), limit = splat<vf>(4.0f);
    vf size = x < splat<vf>(0.0f) ? -x : x;
    vi large = size > limit;
    vf small = small_tanh_of(large ? limit : x);
    if (!any_of(large)) return small;
    vf distance = two / (exp_of(two * size) + one);
    return large ? (x < splat<vf>(0.0f) ? distance - one : one - distance) : small;
}

}  // namespace snip::SNIP_ISA
