// LSTM and GRU over a whole sequence. Columns of the feature-major layout are (step, batch): step t
// of an [features, steps * batch] buffer is the columns from t * batch on. Batch elements do not
// interact, so each thread takes some of them through all steps without waiting for the others.
// Products with the inputs of all steps at once are plain linear kernels, done by the caller.

// Runs body(first, count) on shares of the batch of whole vectors.
template <class F>
static inline void each_share(int64_t hidden, int64_t batch, int64_t steps, int threads, F body) {
    int64_t vectors = most(1, batch / VL);
    int64_t shares = hidden * batch * steps * 8 < SERIAL_WORK ? 1 : least(vectors, threads);
    auto share = [&](int64_t s) {
        int64_t from = vectors * s / shares * VL;
        int64_t to = s + 1 == shares ? batch : vectors * (s + 1) / shares * VL;
        body(from, to - from);
    };
    snip::parallel(shares, threads, share);
}

// One row of h after another, VL columns at a time: body(row, column, columns left).
template <class F>
static inline void each_cell(int64_t hidden, int64_t first, int64_t count, F body) {
    for (int64_t j = 0; j < hidden; j++)
        for (int64_t b = 0; b < count; b += VL) body(j, first + b, count - b);
}

static void lstm_forward(const int32_t* rowptr, const int32_t* cols, const float* values,
                         float* gates, int64_t gates_row, float* h, int64_t h_row, float* c,
                         int64_t c_row, int64_t hidden, int64_t batch, int64_t steps,
                         int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        for (int64_t t = 0; t < steps; t++) {
            float* g = gates + t * batch;
            float *h0 = h + t * batch, *c0 = c + t * batch;
            Product p{rowptr, cols, nullptr, values, h0 + first, h_row, nullptr, g + first, gates_row,
                      ACCUMULATE};
            product_rows(p, count, 0, 4 * hidden);
            each_cell(hidden, first, count, [&](int64_t j, int64_t b, int64_t n) {
                float* at = g + j * gates_row + b;
                int64_t gate = hidden * gates_row;
                vf in = logistic_of(load_upto(at, n)), keep = logistic_of(load_upto(at + gate, n));
                vf cand = tanh_of(load_upto(at + 2 * gate, n));
                vf out = logistic_of(load_upto(at + 3 * gate, n));
                vf cell = keep * load_upto(c0 + j * c_row + b, n) + in * cand;
                store_upto(at, in, n);
                store_upto(at + gate, keep, n);
                store_upto(at + 2 * gate, cand, n);
                store_upto(at + 3 * gate, out, n);
                store_upto(c0 + batch + j * c_row + b, cell, n);
                store_upto(h0 + batch + j * h_row + b, out * tanh_of(cell), n);
            });
        }
    });
}

// gates as lstm_forward left them; dh [hidden, steps * batch] is the gradient of every output;
// carry_h and carry_c [hidden, batch] hold that of the last state and receive that of the first.
static void lstm_backward(const int32_t* t_rowptr, const int32_t* t_cols, const int32_t* t_order,
                          const float* values, const float* gates, float* dgates, int64_t gates_row,
                          const float* c, int64_t c_row, const float* dh, int64_t dh_row,
                          float* carry_h, float* carry_c, int64_t carry_row, int64_t hidden,
                          int64_t batch, int64_t steps, int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        for (int64_t t = steps - 1; t >= 0; t--) {
            const float* c0 = c + t * batch;
            each_cell(hidden, first, count, [&](int64_t j, int64_t b, int64_t n) {
                int64_t gate = hidden * gates_row, at = j * gates_row + t * batch + b;
                vf one = splat<vf>(1.0f);
                vf in = load_upto(gates + at, n), keep = load_upto(gates + at + gate, n);
                vf cand = load_upto(gates + at + 2 * gate, n), out = load_upto(gates + at + 3 * gate, n);
                vf squashed = tanh_of(load_upto(c0 + batch + j * c_row + b, n));
                vf d = load_upto(carry_h + j * carry_row + b, n);
                if (dh) d += load_upto(dh + j * dh_row + t * batch + b, n);
                vf dc = load_upto(carry_c + j * carry_row + b, n) +
                        d * out * (one - squashed * squashed);
                vf before = load_upto(c0 + j * c_row + b, n);
                store_upto(dgates + at, dc * cand * in * (one - in), n);
                store_upto(dgates + at + gate, dc * before * keep * (one - keep), n);
                store_upto(dgates + at + 2 * gate, dc * in * (one - cand * cand), n);
                store_upto(dgates + at + 3 * gate, d * squashed * out * (one - out), n);
                store_upto(carry_c + j * carry_row + b, dc * keep, n);
            });
            Product p{t_rowptr, t_cols, t_order, values, dgates + t * batch + first, gates_row, nullptr,
                      carry_h + first, carry_row, 0};
            product_rows(p, count, 0, hidden);
        }
    });
}
