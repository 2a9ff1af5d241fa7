// Softmax and cross-entropy of the last layer, on columns [classes, lanes].
#pragma once
#include "lanes.hpp"
#include "marks.hpp"
#include "math.hpp"

namespace snip::SNIP_ISA {

SNIP_STRUCT LossOutcome {
    double loss;      // summed over the batch
    int64_t wrong;    // answers whose largest logit is elsewhere than at the label
    int64_t strange;  // labels outside [0, classes)
};

// A vector of lanes: leaves exp(z - largest) in d, and tells the largest logit and the sum of d.
struct Softmax {
    vf largest, total, poison;

    Softmax(const float* z, float* d, int64_t row, int64_t classes, int64_t n) {
        largest = load_upto(z, n);
        poison = total = splat<vf>(0.0f);
        for (int64_t c = 1; c < classes; c++) {
            vf v = load_upto(z + c * row, n);
            largest = v > largest ? v : largest;
        }
        for (int64_t c = 0; c < classes; c++) {
            vf v = load_upto(z + c * row, n), e = exp_of(v - largest);
            poison += v - v;  // NaN where a logit is not finite, which exp_of need not show
            total += e;
            store_upto(d + c * row, e, n);
        }
    }
};

// The number of the largest logit, the first of them if several are equal; as torch has it, a NaN is
// larger than any number. `odd` tells that a logit is not finite.
static int64_t answer_of(const float* z, int64_t row, int64_t classes, float largest, bool odd) {
    for (int64_t c = 0; odd && c < classes; c++)
        if (z[c * row] != z[c * row]) return c;
    int64_t best = 0;
    while (best < classes && z[best * row] != largest) best++;
    return best;
}

// dz = (softmax(z) - one-hot(label)) * scale for the first `valid` lanes, zero for the others.
static LossOutcome cross_entropy(const float* z, float* dz, const int64_t* labels, int64_t classes,
                                 int64_t lanes, int64_t valid, float scale) {
    LossOutcome outcome{0, 0, 0};
    for (int64_t b = 0; b < lanes; b += VL) {
        int64_t n = lanes - b;
        Softmax s(z + b, dz + b, lanes, classes, n);
        float largest[VL], total[VL], poison[VL], factor[VL];
        store<vf>(largest, s.largest);
        store<vf>(total, s.total);
        store<vf>(poison, s.poison);
        for (int64_t j = 0; j < VL; j++) factor[j] = b + j < valid ? scale / total[j] : 0.0f;
        vf by = load<vf>(factor);
        for (int64_t c = 0; c < classes; c++)
            store_upto(dz + c * lanes + b, load_upto(dz + c * lanes + b, n) * by, n);
        for (int64_t j = 0; j < VL && b + j < valid; j++) {
            int64_t label = labels[b + j];
            if (label < 0 || label >= classes) {
                outcome.strange++;
                continue;
            }
            int64_t at = label * lanes + b + j;
            dz[at] -= scale;
            outcome.loss += __builtin_log(double(total[j])) + double(largest[j]) - z[at] + poison[j];
            outcome.wrong += answer_of(z + b + j, lanes, classes, largest[j], poison[j] != 0) != label;
        }
    }
    return outcome;
}

}  // namespace snip::SNIP_ISA
