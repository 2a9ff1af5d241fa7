// GRU over a whole sequence, laid out as the LSTM (recurrent.hpp); gate order r, z, n as in torch.

// from_x [3 hidden, steps * batch] holds W_ih x + b_ih and receives the gates r, z, n; from_h, of the
// same shape, receives W_hh h + b_hh, whose last third the backward pass needs.
static void gru_forward(const int32_t* rowptr, const int32_t* cols, const float* values,
                        const float* bias, float* from_x, float* from_h, int64_t gates_row, float* h,
                        int64_t h_row, int64_t hidden, int64_t batch, int64_t steps,
                        int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        Share share(first, count);
        float *now = share.buffer(2 * hidden), *next = now + hidden * share.row;
        share.copy(now, h, h_row, hidden);
        for (int64_t t = 0; t < steps; t++) {
            Product p{rowptr, cols,      nullptr, values,
                      now,    share.row, bias,    from_h + t * batch + first, gates_row, 0};
            for (int64_t j = 0; j < hidden; j++) {
                for (int64_t gate = 0; gate < 3 && j % RUN == 0; gate++)
                    product_rows(p, count, gate * hidden + j, gate * hidden + least(hidden, j + RUN));
                int64_t apart = hidden * gates_row, at = j * gates_row + t * batch + first;
                float *gx = from_x + at, *gh = from_h + at;
                float* h1 = h + j * h_row + (t + 1) * batch + first;
                for (int64_t b = 0; b < count; b += VL) {
                    int64_t n = count - b;
                    vf reset = logistic_of(load_upto(gx + b, n) + load_upto(gh + b, n));
                    vf keep = logistic_of(load_upto(gx + apart + b, n) + load_upto(gh + apart + b, n));
                    vf cand = tanh_of(load_upto(gx + 2 * apart + b, n) +
                                      reset * load_upto(gh + 2 * apart + b, n));
                    vf state = cand + keep * (load<vf>(now + j * share.row + b) - cand);
                    store_upto(gx + b, reset, n);
                    store_upto(gx + apart + b, keep, n);
                    store_upto(gx + 2 * apart + b, cand, n);
                    store_upto(h1 + b, state, n);
                    store<vf>(next + j * share.row + b, state);
                }
            }
            float* swap = now;
            now = next;
            next = swap;
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
        Share share(first, count);
        float* here = share.buffer(3 * hidden);  // d_h of this step
        for (int64_t t = steps - 1; t >= 0; t--) {
            for (int64_t j = 0; j < hidden; j++) {
                int64_t apart = hidden * gates_row, at = j * gates_row + t * batch + first;
                const float *gx = from_x + at, *inner = from_h + at + 2 * apart;
                const float* h0 = h + j * h_row + t * batch + first;
                const float* d0 = dh ? dh + j * dh_row + t * batch + first : nullptr;
                float* back = carry + j * carry_row + first;
                for (int64_t b = 0; b < count; b += VL) {
                    int64_t n = count - b;
                    vf one = splat<vf>(1.0f), d = load_upto(back + b, n), d_gate[3];
                    vf reset = load_upto(gx + b, n), keep = load_upto(gx + apart + b, n);
                    vf cand = load_upto(gx + 2 * apart + b, n);
                    if (d0) d += load_upto(d0 + b, n);
                    vf d_cand = d * (one - keep) * (one - cand * cand);
                    d_gate[0] = d_cand * load_upto(inner + b, n) * reset * (one - reset);
                    d_gate[1] = d * (load_upto(h0 + b, n) - cand) * keep * (one - keep);
                    d_gate[2] = d_cand * reset;
                    store_upto(back + b, d * keep, n);
                    SNIP_UNROLL for (int i = 0; i < 3; i++) {
                        store_upto(d_x + at + i * apart + b, i < 2 ? d_gate[i] : d_cand, n);
                        store_upto(d_h + at + i * apart + b, d_gate[i], n);
                        store<vf>(here + (i * hidden + j) * share.row + b, d_gate[i]);
                    }
                }
            }
            Product p{t_rowptr, t_cols, t_order, values, here, share.row, nullptr, carry + first,
                      carry_row, ACCUMULATE};
            product_rows(p, count, 0, hidden);
        }
    });
}
