// GRU over a whole sequence, laid out as the LSTM (recurrent.hpp); gate order r, z, n as in torch.

// from_x [3 hidden, steps * batch] holds W_ih x + b_ih and receives the gates r, z, n; from_h, of the
// same shape, receives W_hh h + b_hh, whose last third the backward pass needs.
static void gru_forward(const int32_t* rowptr, const int32_t* cols, const float* values,
                        const float* bias, float* from_x, float* from_h, int64_t gates_row, float* h,
                        int64_t h_row, int64_t hidden, int64_t batch, int64_t steps,
                        int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        for (int64_t t = 0; t < steps; t++) {
            float *gx = from_x + t * batch, *gh = from_h + t * batch, *h0 = h + t * batch;
            Product p{rowptr, cols, nullptr, values, h0 + first, h_row, bias, gh + first, gates_row, 0};
            product_rows(p, count, 0, 3 * hidden);
            each_cell(hidden, first, count, [&](int64_t j, int64_t b, int64_t n) {
                int64_t gate = hidden * gates_row, at = j * gates_row + b;
                vf reset = logistic_of(load_upto(gx + at, n) + load_upto(gh + at, n));
                vf keep = logistic_of(load_upto(gx + at + gate, n) + load_upto(gh + at + gate, n));
                vf cand = tanh_of(load_upto(gx + at + 2 * gate, n) +
                                  reset * load_upto(gh + at + 2 * gate, n));
                vf before = load_upto(h0 + j * h_row + b, n);
                store_upto(gx + at, reset, n);
                store_upto(gx + at + gate, keep, n);
                store_upto(gx + at + 2 * gate, cand, n);
                store_upto(h0 + batch + j * h_row + b, cand + keep * (before - cand), n);
            });
        }
    });
}

// from_x and from_h as gru_forward left them; d_x and d_h receive the gradients of what they held
// before. carry [hidden, batch] holds the gradient of the last state and receives that of the first.
static void gru_backward(const int32_t* t_rowptr, const int32_t* t_cols, const int32_t* t_order,
                         const float* values, const float* from_x, const float* from_h, float* d_x,
                         float* d_h, int64_t gates_row, const float* h, int64_t h_row,
                         const float* dh, int64_t dh_row, float* carry, int64_t carry_row,
                         int64_t hidden, int64_t batch, int64_t steps, int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        for (int64_t t = steps - 1; t >= 0; t--) {
            each_cell(hidden, first, count, [&](int64_t j, int64_t b, int64_t n) {
                int64_t gate = hidden * gates_row, at = j * gates_row + t * batch + b;
                vf one = splat<vf>(1.0f);
                vf reset = load_upto(from_x + at, n), keep = load_upto(from_x + at + gate, n);
                vf cand = load_upto(from_x + at + 2 * gate, n);
                vf inner = load_upto(from_h + at + 2 * gate, n);
                vf before = load_upto(h + j * h_row + t * batch + b, n);
                vf d = load_upto(carry + j * carry_row + b, n);
                if (dh) d += load_upto(dh + j * dh_row + t * batch + b, n);
                vf d_cand = d * (one - keep) * (one - cand * cand);
                vf d_reset = d_cand * inner * reset * (one - reset);
                vf d_keep = d * (before - cand) * keep * (one - keep);
                store_upto(d_x + at, d_reset, n);
                store_upto(d_x + at + gate, d_keep, n);
                store_upto(d_x + at + 2 * gate, d_cand, n);
                store_upto(d_h + at, d_reset, n);
                store_upto(d_h + at + gate, d_keep, n);
                store_upto(d_h + at + 2 * gate, d_cand * reset, n);
                store_upto(carry + j * carry_row + b, d * keep, n);
            });
            Product p{t_rowptr, t_cols, t_order, values, d_h + t * batch + first, gates_row, nullptr,
                      carry + first, carry_row, ACCUMULATE};
            product_rows(p, count, 0, hidden);
        }
    });
}
