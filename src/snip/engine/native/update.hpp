// One step of SGD, as torch.optim.SGD does it, over all parameters of a network.
#pragma once
#include "lanes.hpp"
#include "marks.hpp"

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

}  // namespace snip::SNIP_ISA
