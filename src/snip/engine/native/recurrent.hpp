// LSTM and GRU over a whole sequence. Columns of the as columns layout are (step, batch): step t
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

// Between steps a thread keeps its share of what the next product reads in a buffer of its own: in
// the caller's buffers a step's rows lie pages apart.
struct Share {
    int64_t first, count, row;  // columns of the batch, and floats per row of the buffer

    Share(int64_t first_, int64_t count_) : first(first_), count(count_), row(ceil_div(count_, 16) * 16) {}
    float* buffer(int64_t rows) const { return snip::scratch(snip::STATE, rows * row); }
    void copy(float* to, const float* from, int64_t from_row, int64_t rows) const {
        for (int64_t j = 0; j < rows; j++) copy_floats(to + j * row, from + j * from_row + first, count);
    }
};

// Hidden units whose products are computed together: calls are few, and the sums stay in the cache.
constexpr int64_t RUN = 16;

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

static void lstm_forward(const int32_t* rowptr, const int32_t* cols, const float* values,
                         float* gates, int64_t gates_row, float* h, int64_t h_row, float* c,
                         int64_t c_row, int64_t hidden, int64_t batch, int64_t steps,
                         int32_t threads) {
    each_share(hidden, batch, steps, threads, [&](int64_t first, int64_t count) {
        Share share(first, count);
        if (batch == 1) share.row = 1;  // units side by side
        float* now = share.buffer(2 * hidden + 4 * RUN);  // h of this step and of the next, four gates
        float *next = now + hidden * share.row, *four = next + hidden * share.row;
        share.copy(now, h, h_row, hidden);
        for (int64_t t = 0; t < steps; t++) {
            for (int64_t unit = 0; unit < hidden; unit += RUN) {
                int64_t units = least(RUN, hidden - unit);
                for (int64_t gate = 0; gate < 4; gate++) {
                    int64_t row = gate * hidden + unit;
                    float* y = four + gate * RUN * share.row;
                    for (int64_t j = 0; j < units; j++)
                        copy_floats(y + j * share.row, gates + (row + j) * gates_row + t * batch + first, count);
                    Product p{rowptr + row, cols, nullptr, values, now, share.row, nullptr, y, share.row,
                              ACCUMULATE};
                    product_rows(p, count, 0, units);
                }
                if (batch == 1) {
                    lstm_run(four, gates + unit * gates_row + t, hidden * gates_row, gates_row,
                             c + unit * c_row + t, c_row, h + unit * h_row + t + 1, h_row, next + unit,
                             units);
                    continue;
                }
                for (int64_t j = 0; j < units; j++) {
                    int64_t at = (unit + j) * gates_row + t * batch + first, apart = hidden * gates_row;
                    int64_t state_at = (unit + j) * h_row + (t + 1) * batch + first;
                    lstm_unit(four + j * share.row, RUN * share.row, gates + at, apart,
                              c + (unit + j) * c_row + t * batch + first, batch, h + state_at,
                              next + (unit + j) * share.row, count);
                }
            }
            float* swap = now;
            now = next;
            next = swap;
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
        Share share(first, count);
        float* here = share.buffer(4 * hidden);  // dgates of this step
        for (int64_t t = steps - 1; t >= 0; t--) {
            for (int64_t j = 0; j < hidden; j++) {
                int64_t apart = hidden * gates_row, at = j * gates_row + t * batch + first;
                const float* c0 = c + j * c_row + t * batch + first;
                const float* d0 = dh ? dh + j * dh_row + t * batch + first : nullptr;
                float *ch = carry_h + j * carry_row + first, *cc = carry_c + j * carry_row + first;
                for (int64_t b = 0; b < count; b += VL) {
                    int64_t n = count - b;
                    vf one = splat<vf>(1.0f), gate[4], d_gate[4];
                    SNIP_UNROLL for (int i = 0; i < 4; i++) gate[i] = load_upto(gates + at + i * apart + b, n);
                    vf in = gate[0], keep = gate[1], cand = gate[2], out = gate[3];
                    vf squashed = tanh_of(load_upto(c0 + batch + b, n)), d = load_upto(ch + b, n);
                    if (d0) d += load_upto(d0 + b, n);
                    vf dc = load_upto(cc + b, n) + d * out * (one - squashed * squashed);
                    d_gate[0] = dc * cand * in * (one - in);
                    d_gate[1] = dc * load_upto(c0 + b, n) * keep * (one - keep);
                    d_gate[2] = dc * in * (one - cand * cand);
                    d_gate[3] = d * squashed * out * (one - out);
                    store_upto(cc + b, dc * keep, n);
                    SNIP_UNROLL for (int i = 0; i < 4; i++) {
                        store_upto(dgates + at + i * apart + b, d_gate[i], n);
                        store<vf>(here + (i * hidden + j) * share.row + b, d_gate[i]);
                    }
                }
            }
            Product p{t_rowptr, t_cols, t_order, values, here, share.row, nullptr, carry_h + first,
                      carry_row, 0};
            product_rows(p, count, 0, hidden);
        }
    });
}
