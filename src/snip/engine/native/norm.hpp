// Batch normalisation with ReLU fused, and the backward pass of bias and ReLU, on blocks. One thread does a
// whole channel, so that the second pass over it finds it in cache. Lanes beyond the batch do not count and
// become zero.
#pragma once
#include "lanes.hpp"
#include "marks.hpp"

namespace snip::SNIP_ISA {

struct Moments {
    double mean, squares;  // squares: sum of squared deviations
};

// Two passes over one block's plane, which the cache holds; then blocks are merged (Chan et al.).
static Moments plane_moments(const float* x, int64_t plane, const LaneMask& mask, int64_t samples) {
    // Sums are taken from the first value: those of a constant channel (a dead unit's) are then exact,
    // where an error in the mean would be magnified by the variance that is not there.
    vf total[4] = {}, first = splat<vf>(x[0]);
    each_vector(plane, mask, [&](int64_t i, int64_t n, vi keep) {
        vf d = keep_lanes(load_upto(x + i, n) - first, keep);
        if (n < VL) d = load_part(reinterpret_cast<float*>(&d), n);
        total[i / VL % 4] += d;
    });
    double mean = double(sum((total[0] + total[1]) + (total[2] + total[3]))) / samples + x[0];
    vf squares[4] = {}, center = splat<vf>(float(mean));
    each_vector(plane, mask, [&](int64_t i, int64_t n, vi keep) {
        vf d = keep_lanes(load_upto(x + i, n) - center, keep);
        if (n < VL) d = load_part(reinterpret_cast<float*>(&d), n);
        squares[i / VL % 4] += d * d;
    });
    double off = mean - float(mean);  // the deviations were taken from the rounded mean
    return {mean, double(sum((squares[0] + squares[1]) + (squares[2] + squares[3]))) - off * off * samples};
}

static Moments channel_moments(const Blocks& b, const float* x, int64_t channel) {
    Moments all{0, 0};
    double seen = 0;
    for (int64_t block = 0; block < b.count(); block++) {
        double n = double(b.plane / b.lanes * b.valid(block));
        Moments m =
            plane_moments(x + b.at(block, channel), b.plane, LaneMask(b.lanes, b.valid(block)), int64_t(n));
        double apart = m.mean - all.mean;
        all.mean += apart * n / (seen + n);
        all.squares += m.squares + apart * apart * seen * n / (seen + n);
        seen += n;
    }
    return all;
}

// y = (x - center) * scale + shift, then ReLU.
static void affine_channel(const Blocks& b, const float* x, float* y, int64_t channel, float center,
                           float scale, float shift, bool relu) {
    vf middle = splat<vf>(center), s = splat<vf>(scale), o = splat<vf>(shift);
    for (int64_t block = 0; block < b.count(); block++) {
        const float* from = x + b.at(block, channel);
        float* to = y + b.at(block, channel);
        LaneMask mask(b.lanes, b.valid(block));
        each_vector(b.plane, mask, [&](int64_t i, int64_t n, vi keep) {
            vf v = (load_upto(from + i, n) - middle) * s + o;
            store_upto(to + i, keep_lanes(relu ? relu_of(v) : v, keep), n);
        });
    }
}

// Normalises with the batch's own mean and (biased) variance, which it also returns.
SNIP_KERNEL void norm_train(const float* x, const float* gamma, const float* beta, float* y, float* mean,
                            float* variance, int64_t channels, int64_t plane, int64_t lanes, int64_t batch,
                            double eps, int32_t relu, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        Moments m = channel_moments(b, x, c);
        mean[c] = float(m.mean);
        variance[c] = float(m.squares / double(b.samples()));
        double scale = (gamma ? gamma[c] : 1.0) / __builtin_sqrt(variance[c] + eps);
        affine_channel(b, x, y, c, mean[c], float(scale), beta ? beta[c] : 0.0f, relu);
    });
}

// y = x * scale + shift per channel, then ReLU: batch norm in evaluation mode.
SNIP_KERNEL void norm_apply(const float* x, const float* scale, const float* shift, float* y,
                            int64_t channels, int64_t plane, int64_t lanes, int64_t batch, int32_t relu,
                            int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) { affine_channel(b, x, y, c, 0.0f, scale[c], shift[c], relu); });
}

// Gradients of norm_train, or with `frozen` those of fixed statistics. ReLU's derivative comes from
// the output computed again, so that nothing but x need be kept.
SNIP_KERNEL void norm_backward(const float* x, const float* dy, const float* gamma, const float* beta,
                               const float* mean, const float* variance, float* dx, float* dgamma,
                               float* dbeta, int64_t channels, int64_t plane, int64_t lanes, int64_t batch,
                               double eps, int32_t relu, int32_t frozen, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        double inverse = 1.0 / __builtin_sqrt(variance[c] + eps);
        double scale = (gamma ? gamma[c] : 1.0) * inverse;
        vf s = splat<vf>(float(scale)), center = splat<vf>(mean[c]), zero = splat<vf>(0.0f);
        // The output as the forward pass computed it.
        double shift = beta ? beta[c] : 0.0;
        vf middle = frozen ? zero : center, o = splat<vf>(float(frozen ? shift - mean[c] * scale : shift));
        auto gradient = [&](vf v, vf d, vi keep) {
            return keep_lanes(d, relu ? keep & ((v - middle) * s + o > zero) : keep);
        };
        double total = 0, along = 0;  // sums of g and of g * (x - mean)
        for (int64_t block = 0; block < b.count(); block++) {
            const float *v = x + b.at(block, c), *d = dy + b.at(block, c);
            vf sums[2] = {zero, zero}, products[2] = {zero, zero};
            each_vector(plane, LaneMask(lanes, b.valid(block)), [&](int64_t i, int64_t n, vi keep) {
                vf value = load_upto(v + i, n), g = gradient(value, load_upto(d + i, n), keep);
                sums[i / VL % 2] += g;
                products[i / VL % 2] += g * keep_lanes(value - center, keep);
            });
            total += sum(sums[0] + sums[1]);
            along += sum(products[0] + products[1]);
        }
        if (dgamma) dgamma[c] = float(along * inverse);
        if (dbeta) dbeta[c] = float(total);
        if (!dx) return;
        vf mean_g = splat<vf>(frozen ? 0.0f : float(total / b.samples()));
        vf slope = splat<vf>(frozen ? 0.0f : float(along * inverse * inverse / b.samples()));
        for (int64_t block = 0; block < b.count(); block++) {
            const float *v = x + b.at(block, c), *d = dy + b.at(block, c);
            float* to = dx + b.at(block, c);
            each_vector(plane, LaneMask(lanes, b.valid(block)), [&](int64_t i, int64_t n, vi keep) {
                vf value = load_upto(v + i, n), g = gradient(value, load_upto(d + i, n), keep);
                vf moved = (g - mean_g - (value - center) * slope) * s;
                store_upto(to + i, keep_lanes(moved, keep), n);
            });
        }
    });
}

// g = dy where y > 0 (dy without y), zero beyond the batch; dbias = its sums. g may be dy or null.
SNIP_KERNEL void relu_backward(const float* dy, const float* y, float* g, float* dbias, int64_t channels,
                               int64_t plane, int64_t lanes, int64_t batch, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        double total = 0;
        for (int64_t block = 0; block < b.count(); block++) {
            int64_t at = b.at(block, c);
            vf sums = splat<vf>(0.0f);
            each_vector(plane, LaneMask(lanes, b.valid(block)), [&](int64_t i, int64_t n, vi keep) {
                if (y) keep &= load_upto(y + at + i, n) > splat<vf>(0.0f);
                vf d = keep_lanes(load_upto(dy + at + i, n), keep);
                sums += d;
                if (g) store_upto(g + at + i, d, n);
            });
            total += sum(sums);
        }
        if (dbias) dbias[c] = float(total);
    });
}

}  // namespace snip::SNIP_ISA
