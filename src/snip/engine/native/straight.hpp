// A straight network in one call: some lanes of the batch at a time go through all layers, the loss
// and back, while their activations are still in the cache; torch is not asked in between. Parts of
// the batch do not depend on the number of threads, so neither do the sums.
#pragma once
#include "conv_weights.hpp"
#include "conversions.hpp"
#include "linear_backward.hpp"
#include "loss.hpp"
#include "network.hpp"
#include "norm.hpp"

namespace snip::SNIP_ISA {

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

static void layer_forward(const Layer& l, int64_t lanes, int64_t width, const float* x, float* y,
                          uint8_t* which, int32_t threads) {
    switch (l.kind) {
        case LINEAR:
            linear_forward(l.rowptr, l.cols, nullptr, l.values, x, lanes, l.bias, y, lanes, l.outputs, width,
                           l.relu ? RELU : 0, threads);
            break;
        case CONV: conv_forward(l.forward, l.values, x, nullptr, l.bias, y, lanes, l.relu, threads); break;
        case MAX_POOL: max_pool(x, y, which, l.window, planes_of(l), lanes, threads); break;
        case RECTIFIER:
            for (int64_t i = 0; i < l.outputs * lanes; i += VL) {
                int64_t n = l.outputs * lanes - i;
                store_upto(y + i, relu_of(load_upto(x + i, n)), n);
            }
            break;
    }
}

// dx is null for the first layer. dy may be overwritten.
static void layer_backward(const Layer& l, int64_t lanes, int64_t width, const float* x, const float* y,
                           const uint8_t* which, float* dy, float* dx, float* gradients, int32_t threads) {
    float* dw = l.values_at < 0 ? nullptr : gradients + l.values_at;
    float* db = l.bias_at < 0 ? nullptr : gradients + l.bias_at;
    switch (l.kind) {
        case LINEAR:
            linear_backward(l.rowptr, l.cols, l.t_rowptr, l.t_cols, l.t_order, l.values, x, lanes, dy, lanes,
                            l.relu ? y : nullptr, lanes, dx, lanes, dw, db, l.outputs, l.inputs, width,
                            threads);
            break;
        case CONV: {
            int64_t channels = l.forward->out_channels, plane = l.outputs / channels * lanes;
            if (l.relu || db)
                relu_backward(dy, l.relu ? y : nullptr, l.relu ? dy : nullptr, db, channels, plane, lanes,
                              lanes, threads);
            if (dw) check_given(l.weights);
            if (dx) check_given(l.backward);
            if (dw) weight_sums(l.weights, x, dy, dw, lanes, true, threads);
            if (dx) conv_forward(l.backward, l.values, dy, nullptr, nullptr, dx, lanes, 0, threads);
            break;
        }
        case MAX_POOL:
            if (dx) max_pool_backward(dy, which, dx, l.window, planes_of(l), lanes, threads);
            break;
        case RECTIFIER:
            if (dx) relu_backward(dy, y, dx, nullptr, 1, l.outputs * lanes, lanes, lanes, threads);
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

// A part of the batch: which samples, and its activations.
struct Part {
    const Network& net;
    int64_t number, first, valid, width;
    int32_t threads;  // that its layers run on
    float* state[MOST_LAYERS + 1];
    uint8_t* which[MOST_LAYERS];

    // What the backward pass reads again is put into `saved`, [parts, net.saved()]; null: nothing is.
    Part(const Network& network, int64_t part, int64_t batch, float* saved, int32_t own_threads)
        : net(network), number(part), threads(own_threads) {
        first = number * net.lanes;
        valid = least(net.lanes, batch - first);
        width = net.width(valid);
        float* passing = scratch(NETWORK_STATES, net.states());
        float* kept = saved ? saved + number * net.saved() : nullptr;
        for (int64_t i = 0; i <= net.count; i++) {
            float*& at = saved && net.read_again(i) ? kept : passing;
            state[i] = at;
            at += net.state(i);
            if (i == net.count) break;
            float*& places = saved ? kept : passing;
            which[i] = reinterpret_cast<uint8_t*>(places);
            places += net.places(i);
        }
    }
    void forward(const float* x) const {
        take_input(net, x, first, valid, state[0]);
        for (int64_t i = 0; i < net.count; i++)
            layer_forward(net.layers[i], net.lanes, width, state[i], state[i + 1], which[i], threads);
    }
    // dy is the gradient of the last state, and dx as much room; both are overwritten.
    void backward(float* dy, float* dx, float* gradients) const {
        for (int64_t i = net.count - 1; i >= 0; i--) {
            layer_backward(net.layers[i], net.lanes, width, state[i], state[i + 1], which[i], dy,
                           i ? dx : nullptr, gradients, threads);
            float* swap = dy;
            dy = dx;
            dx = swap;
        }
    }
};

// Runs body(number, threads) for each part of the batch: as many as there are threads at a time, each on
// one of them. Of the last ones, if they are few, each has all threads for its layers.
template <class F>
static void each_part(int64_t parts, int32_t threads, F body) {
    int64_t last = threads > 1 && 2 * (parts % threads) <= threads ? parts % threads : 0;
    auto one = [&](int64_t number) { body(number, 1); };
    parallel(parts - last, threads, one);
    for (int64_t number = parts - last; number < parts; number++) body(number, threads);
}

static void forward_parts(const Network& net, const float* x, float* y, float* saved, int64_t batch,
                          int32_t threads) {
    net.check(batch);
    int64_t out = net.layers[net.count - 1].outputs;
    spread_biases(net);
    each_part(net.parts(batch), threads, [&](int64_t number, int32_t own_threads) {
        Part part(net, number, batch, saved, own_threads);
        part.forward(x);
        transpose_tile(part.state[net.count], net.lanes, y + part.first * out, out, out, part.valid);
    });
}

// Runs body(number, where its gradients go, threads) for each part, and sums those into `gradients`.
template <class F>
static void backward_parts(const Network& net, float* gradients, int64_t batch, int32_t threads, F body) {
    int64_t parts = net.parts(batch);
    float* partial = scratch(NETWORK_PARTS, parts * net.gradients);
    each_part(parts, threads, [&](int64_t number, int32_t own_threads) {
        body(number, partial + number * net.gradients, own_threads);
    });
    for (int64_t k = 0; k < net.gradients; k++) gradients[k] = partial[k];
    for (int64_t part = 1; part < parts; part++) {
        const float* more = partial + part * net.gradients;
        for (int64_t k = 0; k < net.gradients; k++) gradients[k] += more[k];
    }
    gather_biases(net, gradients);
}

// y [batch, out features] of x [batch, in features].
SNIP_KERNEL void network_forward(const Network* network, const float* x, float* y, int64_t batch,
                                 int32_t threads) {
    check_given(network, x, y);
    forward_parts(*network, x, y, nullptr, batch, threads);
}

// Floats that each part of the batch keeps for its backward pass.
SNIP_KERNEL void network_room(const Network* network, int64_t* floats) {
    check_given(network, floats);
    network->check(1);
    *floats = network->saved();
}

// The same as network_forward, and what network_backward reads again: [parts, network_room].
SNIP_KERNEL void network_training_forward(const Network* network, const float* x, float* y, float* saved,
                                          int64_t batch, int32_t threads) {
    check_given(network, x, y, saved);
    forward_parts(*network, x, y, saved, batch, threads);
}

// The gradients of all parameters, in one row, from dy [batch, out features].
SNIP_KERNEL void network_backward(const Network* network, float* saved, const float* dy, float* gradients,
                                  int64_t batch, int32_t threads) {
    check_given(network, saved, dy);
    const Network& net = *network;
    net.check(batch);
    int64_t out = net.layers[net.count - 1].outputs;
    backward_parts(net, gradients, batch, threads, [&](int64_t number, float* own, int32_t own_threads) {
        Part part(net, number, batch, saved, own_threads);
        float* columns = scratch(NETWORK_GRADIENTS, 2 * net.widest());
        transpose_tile(dy + part.first * out, out, columns, net.lanes, part.valid, out);
        if (part.valid < net.lanes) drop_lanes(columns, out, net.lanes, part.valid);
        part.backward(columns, columns + net.widest(), own);
    });
}

// Forward, mean cross-entropy (one outcome per part, summed into the first) and backward.
SNIP_KERNEL void network_gradients(const Network* network, const float* x, const int64_t* labels,
                                   float* gradients, LossOutcome* outcomes, int64_t batch, int32_t threads) {
    check_given(network, x, labels, outcomes);
    const Network& net = *network;
    net.check(batch);
    int64_t out = net.layers[net.count - 1].outputs;
    spread_biases(net);
    backward_parts(net, gradients, batch, threads, [&](int64_t number, float* own, int32_t own_threads) {
        Part part(net, number, batch, nullptr, own_threads);
        part.forward(x);
        float* dy = scratch(NETWORK_GRADIENTS, 2 * net.widest());
        outcomes[number] = cross_entropy(part.state[net.count], dy, labels + part.first, out, net.lanes,
                                         part.valid, 1.0f / batch);
        part.backward(dy, dy + net.widest(), own);
    });
    for (int64_t part = 1; part < net.parts(batch); part++) {
        outcomes[0].loss += outcomes[part].loss;
        outcomes[0].wrong += outcomes[part].wrong;
        outcomes[0].strange += outcomes[part].strange;
    }
    outcomes[0].loss /= batch;
}

}  // namespace snip::SNIP_ISA
