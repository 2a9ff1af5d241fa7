// Sparse times dense on plain activations [batch, features], as torch has them. A tile of samples at a
// time is transposed into memory that stays in the cache, goes through the products on columns there,
// and is transposed back on its way out: nothing but x, y and their gradients passes through memory.
#pragma once
#include "conversions.hpp"
#include "linear_backward.hpp"
#include "memory.hpp"

namespace snip::SNIP_ISA {

SNIP_ENUM PlainTile { SAMPLES = 64 };  // samples per tile: their features fit the second cache
constexpr int64_t BLOCK = 64;     // outputs that are transposed back at once, from the first cache

// values[order[k]] for all k, where there is an order: every tile reads them again.
static const float* in_order(const float* values, const int32_t* order, int64_t count) {
    if (!order) return values;
    float* sorted = scratch(ENTRIES, count);
    for (int64_t k = 0; k < count; k++) sorted[k] = values[order[k]];
    return sorted;
}

// All outputs of a tile: xs [features, SAMPLES] to y [samples, rows].
static void product_to_plain(const Product& p, const float* xs, float* y, int64_t ldy, int64_t rows,
                             int64_t samples) {
    float* made = scratch(PARTIAL_OUTPUT, BLOCK * SAMPLES);
    for (int64_t r = 0; r < rows; r += BLOCK) {
        int64_t count = least(BLOCK, rows - r);
        const float* bias = p.bias ? p.bias + r : nullptr;
        Product block{p.rowptr + r, p.cols, nullptr, p.values, xs, SAMPLES, bias, made, SAMPLES, 0};
        product_rows(block, samples, 0, count);
        transpose_tile(made, SAMPLES, y + r, ldy, count, samples);
    }
}

// dbias[r] = sum over the samples of dy[sample][r], added to what is there if asked for.
static void sum_samples(const float* dy, int64_t lddy, float* dbias, int64_t rows, int64_t samples,
                        bool add) {
    int64_t r = 0;
    for (; r + VL <= rows; r += VL) {
        vf total = splat<vf>(0.0f);
        for (int64_t n = 0; n < samples; n++) total += load<vf>(dy + n * lddy + r);
        store<vf>(dbias + r, add ? load<vf>(dbias + r) + total : total);
    }
    for (; r < rows; r++) {
        float total = 0;
        for (int64_t n = 0; n < samples; n++) total += dy[n * lddy + r];
        dbias[r] = add ? dbias[r] + total : total;
    }
}

// y [batch, rows] = x [batch, columns] times the transpose of the weights [rows, columns], plus bias.
SNIP_KERNEL void plain_forward(const int32_t* rowptr, const int32_t* cols, const int32_t* order,
                               const float* values, const float* x, int64_t ldx, const float* bias, float* y,
                               int64_t ldy, int64_t rows, int64_t columns, int64_t batch, int32_t threads) {
    check_counts(rows, columns, batch);
    Product p{rowptr, cols, nullptr, in_order(values, order, rowptr[rows]), nullptr, 0, bias, nullptr, 0, 0};
    auto body = [&](int64_t tile) {
        int64_t first = tile * SAMPLES, samples = least(SAMPLES, batch - first);
        float* xs = scratch(PACKED_INPUT, columns * SAMPLES);
        transpose_tile(x + first * ldx, ldx, xs, SAMPLES, samples, columns);
        product_to_plain(p, xs, y + first * ldy, ldy, rows, samples);
    };
    int64_t work = (rowptr[rows] + rows + columns) * batch;
    parallel(ceil_div(batch, SAMPLES), work < SERIAL_WORK ? 1 : threads, body);
}

// What a layer and its gradients have in memory. `rowptr` and `cols` are in the order of the values;
// with TURNED their rows are the inputs and their columns the outputs. `back` is the product of dX.
struct PlainGradients {
    const int32_t *rowptr, *cols;
    Product back;
    const float* x;
    int64_t ldx;
    const float* dy;
    int64_t lddy;
    float* dx;
    int64_t lddx, inputs, outputs, batch;
    bool turned;

    // Tiles [from, to), their sums over samples in dw and dbias.
    void tiles(int64_t from, int64_t to, float* dw, float* dbias) const {
        for (int64_t tile = from; tile < to; tile++) {
            int64_t first = tile * SAMPLES, samples = least(SAMPLES, batch - first);
            const float* g = dy + first * lddy;
            float* gs = scratch(MASKED, outputs * SAMPLES);
            transpose_tile(g, lddy, gs, SAMPLES, samples, outputs);
            if (dbias) sum_samples(g, lddy, dbias, outputs, samples, tile > from);
            if (dw) weights(x + first * ldx, gs, dw, samples, tile > from);
            if (dx) product_to_plain(back, gs, dx + first * lddx, lddx, inputs, samples);
        }
    }

    void weights(const float* rows, const float* gs, float* dw, int64_t samples, bool add) const {
        float* xs = scratch(PACKED_INPUT, inputs * SAMPLES);
        transpose_tile(rows, ldx, xs, SAMPLES, samples, inputs);
        auto* columns = samples < 4    ? weight_columns<float>
                        : samples < VL ? weight_columns<v4>
                                       : weight_columns<vf>;
        columns(rowptr, cols, turned ? gs : xs, SAMPLES, turned ? xs : gs, SAMPLES, dw, samples, 0,
                turned ? inputs : outputs, add);
    }
};

// Null pointers leave a step out: dx, dw, dbias. Each part of the batch has sums of its own, which are
// added in order, so that two calls on as many threads give the same bits.
SNIP_KERNEL void plain_backward(const int32_t* rowptr, const int32_t* cols, const int32_t* back_rowptr,
                                const int32_t* back_cols, const int32_t* back_order, const float* values,
                                const float* x, int64_t ldx, const float* dy, int64_t lddy, float* dx,
                                int64_t lddx, float* dw, float* dbias, int64_t inputs, int64_t outputs,
                                int64_t batch, int32_t flags, int32_t threads) {
    check_counts(inputs, outputs, batch);
    int64_t kept = back_rowptr[inputs], tiles = ceil_div(batch, SAMPLES);
    const float* sorted = dx ? in_order(values, back_order, kept) : nullptr;
    Product back{back_rowptr, back_cols, nullptr, sorted, nullptr, 0, nullptr, nullptr, 0, 0};
    PlainGradients g{
        rowptr, cols, back, x, ldx, dy, lddy, dx, lddx, inputs, outputs, batch, bool(flags & TURNED)};
    int64_t work = (kept + inputs + outputs) * batch, sums = kept + outputs;
    int64_t parts = threads <= 1 || work < SERIAL_WORK ? 1 : most(1, least(threads, tiles));
    float* partial = parts > 1 ? scratch(PARTIAL_SUMS, (parts - 1) * sums) : nullptr;
    auto body = [&](int64_t part) {
        float* own = part ? partial + (part - 1) * sums : nullptr;
        g.tiles(tiles * part / parts, tiles * (part + 1) / parts, dw && part ? own : dw,
                dbias && part ? own + kept : dbias);
    };
    parallel(parts, threads, body);
    if (!tiles && dw) zero_floats(dw, kept);
    if (!tiles && dbias) zero_floats(dbias, outputs);
    for (int64_t part = 1; part < parts; part++) {
        const float* own = partial + (part - 1) * sums;
        for (int64_t k = 0; dw && k < kept; k++) dw[k] += own[k];
        for (int64_t r = 0; dbias && r < outputs; r++) dbias[r] += own[kept + r];
    }
}

// dense[r][cols[k]] = values[k]: what is zero stays as it is.
SNIP_KERNEL void unpack_weights(const int32_t* rowptr, const int32_t* cols, const float* values, float* dense,
                                int64_t rows, int64_t columns) {
    check_counts(rows, columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = rowptr[r]; k < rowptr[r + 1]; k++) dense[r * columns + cols[k]] = values[k];
}

// values[k] = dense[r][cols[k]].
SNIP_KERNEL void pack_weights(const int32_t* rowptr, const int32_t* cols, const float* dense, float* values,
                              int64_t rows, int64_t columns) {
    check_counts(rows, columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = rowptr[r]; k < rowptr[r + 1]; k++) values[k] = dense[r * columns + cols[k]];
}

}  // namespace snip::SNIP_ISA
