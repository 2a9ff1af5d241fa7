// GRU over a whole sequence (recurrence.hpp); gate order r, z, n as in torch.
#pragma once
#include "lanes.hpp"
#include "marks.hpp"
#include "math.hpp"
#include "recurrence.hpp"

namespace snip::SNIP_ISA {

// from_x [3 hidden, columns] holds W_ih x + b_ih and receives the gates r, z, n; from_h, of the
// same shape, receives W_hh h + b_hh, whose last third the backward pass needs. sizes as in Sequence.
SNIP_KERNEL void gru_forward(const int32_t* rowptr, const int32_t* cols, const float* values,
                             const float* bias, float* from_x, float* from_h, int64_t gates_row, float* h,
                             int64_t h_row, int64_t hidden, int64_t batch, int64_t steps,
                             const int64_t* sizes, int32_t threads) {
    Sequence sequence{hidden, batch, steps, sizes, threads};
    int64_t apart = hidden * gates_row;  // between the gates of a unit
    auto body = [&](const Share& share, const UnitRun& run) {
        Product p{rowptr, cols, nullptr, values, run.now, share.row, bias, from_h + run.column, gates_row, 0};
        for (int64_t gate = 0; gate < 3; gate++)
            product_rows(p, run.count, gate * hidden + run.unit, gate * hidden + run.unit + run.units);
        for (int64_t j = run.unit; j < run.unit + run.units; j++) {
            float *gx = from_x + j * gates_row + run.column, *gh = from_h + j * gates_row + run.column;
            float* h1 = h + j * h_row + run.after;
            for (int64_t b = 0; b < run.count; b += VL) {
                int64_t n = run.count - b;
                vf reset = logistic_of(load_upto(gx + b, n) + load_upto(gh + b, n));
                vf keep = logistic_of(load_upto(gx + apart + b, n) + load_upto(gh + apart + b, n));
                vf cand =
                    tanh_of(load_upto(gx + 2 * apart + b, n) + reset * load_upto(gh + 2 * apart + b, n));
                vf state = cand + keep * (load<vf>(run.now + j * share.row + b) - cand);
                store_upto(gx + b, reset, n);
                store_upto(gx + apart + b, keep, n);
                store_upto(gx + 2 * apart + b, cand, n);
                store_upto(h1 + b, state, n);
                store<vf>(run.next + j * share.row + b, state);
            }
        }
    };
    run_steps(sequence, h, h_row, 0, false, body);
}

// from_x and from_h as gru_forward left them; d_x and d_h receive the gradients of what they held
// before. carry [hidden, batch] holds the gradient of the last state and receives that of the first.
SNIP_KERNEL void gru_backward(const int32_t* t_rowptr, const int32_t* t_cols, const int32_t* t_order,
                              const float* values, const float* from_x, const float* from_h, float* d_x,
                              float* d_h, int64_t gates_row, const float* h, int64_t h_row, const float* dh,
                              int64_t dh_row, float* carry, int64_t carry_row, int64_t hidden, int64_t batch,
                              int64_t steps, const int64_t* sizes, int32_t threads) {
    int64_t apart = hidden * gates_row;
    auto body = [&](int64_t unit, const StepPlace& step, int64_t element, int64_t n, vf* d_gate) {
        int64_t at = unit * gates_row + step.column + element;
        float* back = carry + unit * carry_row + element;
        vf one = splat<vf>(1.0f), d = load_upto(back, n);
        vf reset = load_upto(from_x + at, n), keep = load_upto(from_x + at + apart, n);
        vf cand = load_upto(from_x + at + 2 * apart, n);
        if (dh) d += load_upto(dh + unit * dh_row + step.column + element, n);
        vf d_cand = d * (one - keep) * (one - cand * cand);
        d_gate[0] = d_cand * load_upto(from_h + at + 2 * apart, n) * reset * (one - reset);
        d_gate[1] = d * (load_upto(h + unit * h_row + step.before + element, n) - cand) * keep * (one - keep);
        d_gate[2] = d_cand * reset;
        store_upto(back, d * keep, n);
        SNIP_UNROLL for (int i = 0; i < 3; i++) {
            store_upto(d_x + at + i * apart, i < 2 ? d_gate[i] : d_cand, n);
            store_upto(d_h + at + i * apart, d_gate[i], n);
        }
    };
    run_steps_back<3>({hidden, batch, steps, sizes, threads}, {t_rowptr, t_cols, t_order, values}, carry,
                      carry_row, ACCUMULATE, body);
}

}  // namespace snip::SNIP_ISA
