// What a straight network is made of: its layers with the addresses of their memory, and the room that
// they need for a part of the batch.
#pragma once
#include "conv_pack.hpp"
#include "errors.hpp"
#include "marks.hpp"
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
    // State i goes into layer i, the last one leaves the network.
    int64_t state(int64_t i) const { return padded((i ? layers[i - 1].outputs : layers[0].inputs) * lanes); }
    // Floats for the places of a pooling's largest inputs, a byte each.
    int64_t places(int64_t i) const {
        return layers[i].kind == MAX_POOL ? padded(ceil_div(layers[i].outputs * lanes, 4)) : 0;
    }
    // Whether the backward pass reads state i again: weights met it, or it shows what a ReLU left.
    bool read_again(int64_t i) const {
        return (i < count && layers[i].kind <= CONV) ||
               (i > 0 && (layers[i - 1].relu || layers[i - 1].kind == RECTIFIER));
    }
    // Floats of all that a part of the batch computes, and of what its backward pass reads again.
    int64_t states() const {
        int64_t total = state(count);
        for (int64_t i = 0; i < count; i++) total += state(i) + places(i);
        return total;
    }
    int64_t saved() const {
        int64_t total = read_again(count) ? state(count) : 0;
        for (int64_t i = 0; i < count; i++) total += (read_again(i) ? state(i) : 0) + places(i);
        return total;
    }
    int64_t widest() const {
        int64_t most_floats = 0;
        for (int64_t i = 0; i <= count; i++) most_floats = most(most_floats, state(i));
        return most_floats;
    }
    // Lanes of a part that are computed: whole vectors of those in the batch. A convolution or a
    // pooling computes all of them.
    int64_t width(int64_t valid) const {
        for (int64_t i = 0; i < count; i++)
            if (layers[i].kind == CONV || layers[i].kind == MAX_POOL) return lanes;
        return least(lanes, ceil_div(valid, VL) * VL);
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

}  // namespace snip::SNIP_ISA
