// A straight network in one call: some lanes of the batch at a time go through all layers, the loss
// and back, while their activations are still in the cache; torch is not asked in between. Parts of
// the batch do not depend on the number of threads, so neither do the sums.
#pragma once
#include "conv_weights.hpp"
#include "conversions.hpp"
#include "errors.hpp"
#include "linear_backward.hpp"
#include "loss.hpp"
#include "norm.hpp"
#include "pool.hpp"

namespace snip::SNIP_ISA {

SNIP_ENUM LayerKind { LINEAR = 0, CONV = 1, MAX_POOL = 2, RECTIFIER = 3 };

SNIP_STRUCT Layer {
    int32_t kind, relu;
    int64_t inputs, outputs;                                     // floats per lane
    const ConvPlan *forward, *backward, *weights;                // of a convolution
    const int32_t *rowptr, *cols, *t_rowptr, *t_cols, *t_order;  // of a linear layer
    const Window* window;                                        // of a pooling
    const float* values;
    float* bias;
    int64_t values_at, bias_at;  // where their gradients go; negative: not wanted
    // Where only some biases survive: their values and rows. `bias` then has room for all of them.
    const float* bias_kept;
    const int32_t* bias_rows;
    int64_t bias_count;

    // Refuses a layer whose parts do not fit each other or so many lanes.
    void check(int64_t lanes, int64_t gradients) const {
        if (kind < LINEAR || kind > RECTIFIER) refuse("no layer is of kind", kind);
        if (inputs < 1 || inputs > INT32_MAX) refuse("a layer has 1 input or more, not", inputs);
        if (outputs < 1 || outputs > INT32_MAX) refuse("a layer has 1 output or more, not", outputs);
        check_counts(bias_count);
        if (bias_count > 0) check_given(bias, bias_kept, bias_rows);
        int64_t weights_here = 0, biases = outputs;
        if (kind == LINEAR) {
            check_given(rowptr);
            weights_here = rowptr[outputs];
        } else if (kind == CONV) {
            check_given(forward);
            check_sizes(*forward, lanes, inputs, outputs);
            if (backward) check_sizes(*backward, lanes, outputs, inputs);
            if (weights) check_sizes(*weights, lanes, inputs, outputs);
            weights_here = forward->entries;
            biases = forward->out_channels;
        } else if (kind == MAX_POOL) {
            check_given(window);
            check_window(*window, 0, lanes);
            int64_t plane = int64_t(window->out_h) * window->out_w, planes = outputs / plane;
            if (planes * plane != outputs || planes * window->in_h * window->in_w != inputs)
                refuse("the window of a pooling is of another size than its input of", inputs);
        } else if (inputs != outputs) {
            refuse("a ReLU has as many outputs as inputs, not", outputs);
        }
        check_counts(weights_here);
        if (weights_here > 0) check_given(values);
        if (kind == MAX_POOL || kind == RECTIFIER) return;
        if ((values_at >= 0 && values_at + weights_here > gradients) ||
            (bias_at >= 0 && bias_at + biases > gradients))
            refuse("the gradients of a layer do not fit into", gradients);
    }
    static void check_sizes(const ConvPlan& p, int64_t lanes, int64_t inputs, int64_t outputs) {
        check_plan(p, lanes);
        if (p.lanes != lanes) refuse("a convolution has other lanes than its network, namely", p.lanes);
        if (int64_t(p.in_channels) * p.in_h * p.in_w != inputs) refuse("a convolution does not read", inputs);
        if (int64_t(p.out_channels) * p.out_h * p.out_w != outputs)
            refuse("a convolution does not make", outputs);
    }
};

SNIP_STRUCT Network {
    const Layer* layers;
    int64_t count, lanes, gradients;  // gradients: floats of all of them
    const int32_t* inputs;            // runs [first, last) of the features that anything reads
    int64_t runs;

    // Every state is a whole number of cache lines.
    static int64_t padded(int64_t floats) { return ceil_div(floats, 16) * 16; }
    int64_t states() const {
        int64_t total = padded(layers[0].inputs * lanes);
        for (int64_t i = 0; i < count; i++) total += padded(layers[i].outputs * lanes);
        return total;
    }
    int64_t widest() const {
        int64_t most_floats = layers[0].inputs;
        for (int64_t i = 0; i < count; i++) most_floats = most(most_floats, layers[i].outputs);
        return padded(most_floats * lanes);
    }
    int64_t pooled() const {
        int64_t total = 0;
        for (int64_t i = 0; i < count; i++)
            if (layers[i].kind == MAX_POOL) total += padded(layers[i].outputs * lanes);
        return total;
    }
    int64_t parts(int64_t batch) const { return ceil_div(batch, lanes); }
    void check(int64_t batch) const {
        if (batch < 1) refuse("a network in one call takes 1 sample or more, not", batch);
        check_given(layers);
        check_counts(gradients, runs);
        if (count < 1 || count > MOST_LAYERS) refuse("a network in one call has 1 to 64 layers, not", count);
        if (lanes < 1 || lanes > MOST_LANES) refuse("a network in one call has 1 to 64 lanes, not", lanes);
        for (int64_t i = 0; i < count; i++) {
            layers[i].check(lanes, gradients);
            if (i && layers[i].inputs != layers[i - 1].outputs)
                refuse("a layer must read what the one before it makes, not", layers[i].inputs);
        }
        if (runs > 0) check_given(inputs);
        for (int64_t run = 0; run < runs; run++)
            if (inputs[2 * run] < 0 || inputs[2 * run] > inputs[2 * run + 1] ||
                inputs[2 * run + 1] > layers[0].inputs)
                refuse("the features that are read do not end at", inputs[2 * run + 1]);
    }
};

// Copies the surviving biases of each layer to their places among all of its biases.
static void spread_biases(const Network& net) {
    for (int64_t i = 0; i < net.count; i++) {
        const Layer& l = net.layers[i];
        for (int64_t k = 0; k < l.bias_count; k++) l.bias[l.bias_rows[k]] = l.bias_kept[k];
    }
}

// The other way for gradients: of those of all biases, the surviving ones move to the front.
static void gather_biases(const Network& net, float* gradients) {
    for (int64_t i = 0; i < net.count; i++) {
        const Layer& l = net.layers[i];
        if (l.bias_at < 0) continue;
        for (int64_t k = 0; k < l.bias_count; k++)
            gradients[l.bias_at + k] = gradients[l.bias_at + l.bias_rows[k]];
    }
}

static int64_t planes_of(const Layer& l) { return l.outputs / (int64_t(l.window->out_h) * l.window->out_w); }

static void layer_forward(const Layer& l, int64_t lanes, const float* x, float* y, uint8_t* which) {
    switch (l.kind) {
        case LINEAR:
            linear_forward(l.rowptr, l.cols, nullptr, l.values, x, lanes, l.bias, y, lanes, l.outputs, lanes,
                           l.relu ? RELU : 0, 1);
            break;
        case CONV: conv_forward(l.forward, l.values, x, nullptr, l.bias, y, lanes, l.relu, 1); break;
        case MAX_POOL: max_pool(x, y, which, l.window, planes_of(l), lanes, 1); break;
        case RECTIFIER:
            for (int64_t i = 0; i < l.outputs * lanes; i += VL) {
                int64_t n = l.outputs * lanes - i;
                store_upto(y + i, relu_of(load_upto(x + i, n)), n);
            }
            break;
    }
}

// dx is null for the first layer. dy may be overwritten.
static void layer_backward(const Layer& l, int64_t lanes, const float* x, const float* y,
                           const uint8_t* which, float* dy, float* dx, float* gradients) {
    float* dw = l.values_at < 0 ? nullptr : gradients + l.values_at;
    float* db = l.bias_at < 0 ? nullptr : gradients + l.bias_at;
    switch (l.kind) {
        case LINEAR:
            linear_backward(l.rowptr, l.cols, l.t_rowptr, l.t_cols, l.t_order, l.values, x, lanes, dy, lanes,
                            l.relu ? y : nullptr, lanes, dx, lanes, dw, db, l.outputs, l.inputs, lanes, 1);
            break;
        case CONV: {
            int64_t channels = l.forward->out_channels, plane = l.outputs / channels * lanes;
            if (l.relu || db)
                relu_backward(dy, l.relu ? y : nullptr, l.relu ? dy : nullptr, db, channels, plane, lanes,
                              lanes, 1);
            if (dw) check_given(l.weights);
            if (dx) check_given(l.backward);
            if (dw) conv_weights(l.weights, x, dy, dw, lanes, 1);
            if (dx) conv_forward(l.backward, l.values, dy, nullptr, nullptr, dx, lanes, 0, 1);
            break;
        }
        case MAX_POOL:
            if (dx) max_pool_backward(dy, which, dx, l.window, planes_of(l), lanes, 1);
            break;
        case RECTIFIER:
            if (dx) relu_backward(dy, y, dx, nullptr, 1, l.outputs * lanes, lanes, lanes, 1);
            break;
    }
}

// Lanes [first, first + valid) of the batch as columns; features that nobody reads are left out.
static void take_input(const Network& net, const float* x, int64_t first, int64_t valid, float* to) {
    int64_t features = net.layers[0].inputs, lanes = net.lanes;
    for (int64_t run = 0; run < net.runs; run++) {
        int64_t from = net.inputs[2 * run], count = net.inputs[2 * run + 1] - from;
        transpose_tile(x + first * features + from, features, to + from * lanes, lanes, valid, count);
        if (valid < lanes) drop_lanes(to + from * lanes, count, lanes, valid);
    }
}

// The activations of one part of the batch: state[i] goes into layer i, state[count] leaves the last.
struct PartStates {
    float* state[MOST_LAYERS + 1];
    uint8_t* which[MOST_LAYERS];

    explicit PartStates(const Network& net) {
        float* at = scratch(NETWORK_STATES, net.states() + net.pooled() / 4);
        uint8_t* places = reinterpret_cast<uint8_t*>(at + net.states());
        state[0] = at;
        at += Network::padded(net.layers[0].inputs * net.lanes);
        for (int64_t i = 0; i < net.count; i++) {
            state[i + 1] = at;
            at += Network::padded(net.layers[i].outputs * net.lanes);
            which[i] = places;
            if (net.layers[i].kind == MAX_POOL) places += Network::padded(net.layers[i].outputs * net.lanes);
        }
    }
    void run(const Network& net, const float* x, int64_t first, int64_t valid) const {
        take_input(net, x, first, valid, state[0]);
        for (int64_t i = 0; i < net.count; i++)
            layer_forward(net.layers[i], net.lanes, state[i], state[i + 1], which[i]);
    }
};

// y [batch, out features] of x [batch, in features].
SNIP_KERNEL void network_forward(const Network* network, const float* x, float* y, int64_t batch,
                                 int32_t threads) {
    check_given(network, x, y);
    const Network& net = *network;
    net.check(batch);
    int64_t out = net.layers[net.count - 1].outputs;
    spread_biases(net);
    auto body = [&](int64_t part) {
        int64_t first = part * net.lanes, valid = least(net.lanes, batch - first);
        PartStates states(net);
        states.run(net, x, first, valid);
        transpose_tile(states.state[net.count], net.lanes, y + first * out, out, out, valid);
    };
    parallel(net.parts(batch), threads, body);
}

// Forward, mean cross-entropy and backward; partial is [parts, gradients], summed into its first row.
SNIP_KERNEL void network_gradients(const Network* network, const float* x, const int64_t* labels,
                                   float* partial, LossOutcome* outcomes, int64_t batch, int32_t threads) {
    check_given(network, x, labels, outcomes);
    const Network& net = *network;
    net.check(batch);
    int64_t parts = net.parts(batch);
    spread_biases(net);
    auto body = [&](int64_t part) {
        int64_t first = part * net.lanes, valid = least(net.lanes, batch - first);
        PartStates states(net);
        states.run(net, x, first, valid);
        float* dy = scratch(NETWORK_GRADIENTS, 2 * net.widest());
        float* dx = dy + net.widest();
        outcomes[part] = cross_entropy(states.state[net.count], dy, labels + first,
                                       net.layers[net.count - 1].outputs, net.lanes, valid, 1.0f / batch);
        for (int64_t i = net.count - 1; i >= 0; i--) {
            layer_backward(net.layers[i], net.lanes, states.state[i], states.state[i + 1], states.which[i],
                           dy, i ? dx : nullptr, partial + part * net.gradients);
            float* swap = dy;
            dy = dx;
            dx = swap;
        }
    };
    parallel(parts, threads, body);
    for (int64_t part = 1; part < parts; part++) {
        const float* more = partial + part * net.gradients;
        for (int64_t k = 0; k < net.gradients; k++) partial[k] += more[k];
        outcomes[0].loss += outcomes[part].loss;
        outcomes[0].wrong += outcomes[part].wrong;
        outcomes[0].strange += outcomes[part].strange;
    }
    outcomes[0].loss /= batch;
    gather_biases(net, partial);
}

}  // namespace snip::SNIP_ISA
