// LSTM over a whole sequence (recurrence.hpp); gate order i, f, g, o as in torch.
#pragma once
#include "lanes.hpp"
#include "marks.hpp"
#include "math.hpp"
#include "recurrence.hpp"

namespace snip::SNIP_ISA {

// One hidden unit at one step: from the sums of its four gates, `sums_apart` floats apart, to the
// gates, the cell (c0 is the old one, `step` floats before the new) and the state.
static inline void lstm_unit(const float* sums, int64_t sums_apart, float* gates, int64_t apart, float* c0,
                             int64_t step, float* h1, float* next, int64_t count) {
    for (int64_t b = 0; b < count; b += VL) {
        int64_t n = count - b;
        vf in = logistic_of(load_upto(sums + b, n));
        vf keep = logistic_of(load_upto(sums + sums_apart + b, n));
        vf cand = tanh_of(load_upto(sums + 2 * sums_apart + b, n));
        vf out = logistic_of(load_upto(sums + 3 * sums_apart + b, n));
        vf cell = keep * load_upto(c0 + b, n) + in * cand, state = out * tanh_of(cell);
        store_upto(gates + b, in, n);
        store_upto(gates + apart + b, keep, n);
        store_upto(gates + 2 * apart + b, cand, n);
        store_upto(gates + 3 * apart + b, out, n);
        store_upto(c0 + step + b, cell, n);
        store_upto(h1 + b, state, n);
        store<vf>(next + b, state);
    }
}

// The same for a run of units of a lone sequence: `sums` and `next` have the units side by side, and
// the vectors run over them; what belongs to one unit is `gates_row` (`c_row`, `h_row`) floats apart.
static inline void lstm_run(const float* sums, float* gates, int64_t apart, int64_t gates_row, float* c0,
                            int64_t c_row, float* h1, int64_t h_row, float* next, int64_t units) {
    for (int64_t u = 0; u < units; u += VL) {
        int64_t n = least(VL, units - u);
        float old[VL] = {}, made[6][VL];
        for (int64_t j = 0; j < n; j++) old[j] = c0[(u + j) * c_row];
        vf in = logistic_of(load_upto(sums + u, n)), keep = logistic_of(load_upto(sums + RUN + u, n));
        vf cand = tanh_of(load_upto(sums + 2 * RUN + u, n));
        vf out = logistic_of(load_upto(sums + 3 * RUN + u, n));
        vf cell = keep * load<vf>(old) + in * cand, state = out * tanh_of(cell);
        vf results[6] = {in, keep, cand, out, cell, state};
        for (int i = 0; i < 6; i++) store<vf>(made[i], results[i]);
        for (int64_t j = 0; j < n; j++) {
            for (int i = 0; i < 4; i++) gates[i * apart + (u + j) * gates_row] = made[i][j];
            c0[(u + j) * c_row + 1] = made[4][j];
            h1[(u + j) * h_row] = next[u + j] = made[5][j];
        }
    }
}

// gates [4 hidden, columns] holds W_ih x + b_ih + b_hh and receives the gates; h and c
// [hidden, batch + columns] hold the initial state in their first columns. sizes as in Sequence.
SNIP_KERNEL void lstm_forward(const int32_t* rowptr, const int32_t* cols, const float* values, float* gates,
                              int64_t gates_row, float* h, int64_t h_row, float* c, int64_t c_row,
                              int64_t hidden, int64_t batch, int64_t steps, const int64_t* sizes,
                              int32_t threads) {
    Sequence sequence{hidden, batch, steps, sizes, threads};
    int64_t apart = hidden * gates_row;  // between the gates of a unit
    auto body = [&](const Share& share, const UnitRun& run) {
        for (int64_t gate = 0; gate < 4; gate++) {
            int64_t row = gate * hidden + run.unit;
            float* sums = run.room + gate * RUN * share.row;
            for (int64_t j = 0; j < run.units; j++)
                copy_floats(sums + j * share.row, gates + (row + j) * gates_row + run.column, run.count);
            Product p{rowptr + row, cols,    nullptr, values,    run.now,
                      share.row,    nullptr, sums,    share.row, ACCUMULATE};
            product_rows(p, run.count, 0, run.units);
        }
        float *g = gates + run.unit * gates_row + run.column, *c0 = c + run.unit * c_row + run.before;
        float *h1 = h + run.unit * h_row + run.after, *next = run.next + run.unit * share.row;
        if (batch == 1) return lstm_run(run.room, g, apart, gates_row, c0, c_row, h1, h_row, next, run.units);
        for (int64_t j = 0; j < run.units; j++)
            lstm_unit(run.room + j * share.row, RUN * share.row, g + j * gates_row, apart, c0 + j * c_row,
                      run.after - run.before, h1 + j * h_row, next + j * share.row, run.count);
    };
    run_steps(sequence, h, h_row, 4 * RUN, batch == 1, body);
}

// gates as lstm_forward left them; dh [hidden, columns] is the gradient of every output;
// carry_h and carry_c [hidden, batch] hold that of the last state and receive that of the first.
SNIP_KERNEL void lstm_backward(const int32_t* t_rowptr, const int32_t* t_cols, const int32_t* t_order,
                               const float* values, const float* gates, float* dgates, int64_t gates_row,
                               const float* c, int64_t c_row, const float* dh, int64_t dh_row, float* carry_h,
                               float* carry_c, int64_t carry_row, int64_t hidden, int64_t batch,
                               int64_t steps, const int64_t* sizes, int32_t threads) {
    int64_t apart = hidden * gates_row;
    auto body = [&](int64_t unit, const StepPlace& step, int64_t element, int64_t n, vf* d_gate) {
        int64_t at = unit * gates_row + step.column + element;
        const float* cell = c + unit * c_row + element;
        float* cc = carry_c + unit * carry_row + element;
        vf one = splat<vf>(1.0f), gate[4];
        SNIP_UNROLL for (int i = 0; i < 4; i++) gate[i] = load_upto(gates + at + i * apart, n);
        vf in = gate[0], keep = gate[1], cand = gate[2], out = gate[3];
        vf squashed = tanh_of(load_upto(cell + step.after, n));
        vf d = load_upto(carry_h + unit * carry_row + element, n);
        if (dh) d += load_upto(dh + unit * dh_row + step.column + element, n);
        vf dc = load_upto(cc, n) + d * out * (one - squashed * squashed);
        d_gate[0] = dc * cand * in * (one - in);
        d_gate[1] = dc * load_upto(cell + step.before, n) * keep * (one - keep);
        d_gate[2] = dc * in * (one - cand * cand);
        d_gate[3] = d * squashed * out * (one - out);
        store_upto(cc, dc * keep, n);
        SNIP_UNROLL for (int i = 0; i < 4; i++) store_upto(dgates + at + i * apart, d_gate[i], n);
    };
    run_steps_back<4>({hidden, batch, steps, sizes, threads}, {t_rowptr, t_cols, t_order, values}, carry_h,
                      carry_row, 0, body);
}

}  // namespace snip::SNIP_ISA
