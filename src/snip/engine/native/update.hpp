// One step of SGD or Adam, as torch.optim does it, over all parameters of an optimiser.
#pragma once
#include "lanes.hpp"
#include "marks.hpp"
#include "math.hpp"

namespace snip::SNIP_ISA {

SNIP_STRUCT Parameter {
    float *values, *momentum;  // momentum: its buffer, or null
    int64_t offset, count;     // where its gradient lies
    float lr, factor, decay;   // factor: of the momentum
    int32_t nesterov;
};

SNIP_KERNEL void sgd_update(const Parameter* parameters, int64_t count, const float* gradients) {
    check_counts(count);
    for (int64_t i = 0; i < count; i++) check_counts(parameters[i].offset, parameters[i].count);
    for (int64_t i = 0; i < count; i++) {
        const Parameter& p = parameters[i];
        vf lr = splat<vf>(p.lr), factor = splat<vf>(p.factor), decay = splat<vf>(p.decay);
        for (int64_t k = 0; k < p.count; k += VL) {
            int64_t n = p.count - k;
            vf w = load_upto(p.values + k, n);
            vf d = load_upto(gradients + p.offset + k, n) + decay * w;
            if (p.momentum) {
                vf m = factor * load_upto(p.momentum + k, n) + d;
                store_upto(p.momentum + k, m, n);
                d = p.nesterov ? d + factor * m : m;
            }
            store_upto(p.values + k, w - lr * d, n);
        }
    }
}

SNIP_STRUCT AdamParameter {
    float *values, *mean, *square, *step;  // the state of torch.optim.Adam: step is one number
    int64_t offset, count;                 // where its gradient lies
    double lr, beta1, beta2, eps, decay;
    int32_t decoupled;  // AdamW: the decay is not added to the gradient
};

static void adam_step(const AdamParameter& p, const float* gradients) {
    double steps = *p.step += 1;
    float size = float(p.lr / (1 - __builtin_pow(p.beta1, steps)));
    vf correction = splat<vf>(float(__builtin_sqrt(1 - __builtin_pow(p.beta2, steps))));
    vf shrink = splat<vf>(p.decoupled ? float(1 - p.lr * p.decay) : 1.0f);
    vf decay = splat<vf>(p.decoupled ? 0.0f : float(p.decay));
    vf near = splat<vf>(float(1 - p.beta1)), beta2 = splat<vf>(float(p.beta2));
    vf rest2 = splat<vf>(float(1 - p.beta2)), eps = splat<vf>(float(p.eps));
    for (int64_t k = 0; k < p.count; k += VL) {
        int64_t n = p.count - k;
        vf w = load_upto(p.values + k, n) * shrink;
        vf d = load_upto(gradients + p.offset + k, n) + decay * w;
        vf m = load_upto(p.mean + k, n), v = load_upto(p.square + k, n);
        m += near * (d - m);
        v = beta2 * v + rest2 * d * d;
        store_upto(p.mean + k, m, n);
        store_upto(p.square + k, v, n);
        store_upto(p.values + k, w - splat<vf>(size) * (m / (sqrt_of(v) / correction + eps)), n);
    }
}

SNIP_KERNEL void adam_update(const AdamParameter* parameters, int64_t count, const float* gradients) {
    check_counts(count);
    for (int64_t i = 0; i < count; i++) {
        check_counts(parameters[i].offset, parameters[i].count);
        check_given(parameters[i].step);
    }
    for (int64_t i = 0; i < count; i++) adam_step(parameters[i], gradients);
}

}  // namespace snip::SNIP_ISA
