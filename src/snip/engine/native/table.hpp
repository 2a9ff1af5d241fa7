// The kernels an instruction set must provide, found by name from Python.
#pragma once

#define SNIP_KERNEL_LIST(X) \
    X(linear_forward) \
    X(linear_backward) \
    X(conv_forward) \
    X(conv_weights) \
    X(winograd_weights) \
    X(winograd_forward) \
    X(transpose) \
    X(rows_to_blocks) \
    X(blocks_to_rows) \
    X(blocks_to_columns) \
    X(columns_to_blocks) \
    X(norm_train) \
    X(norm_apply) \
    X(norm_backward) \
    X(max_pool) \
    X(max_pool_backward) \
    X(relu_backward) \
    X(lstm_forward) \
    X(lstm_backward) \
    X(gru_forward) \
    X(gru_backward) \
    X(network_forward) \
    X(network_gradients) \
    X(sgd_update)

namespace snip {
struct NamedKernel {
    const char* name;
    void* address;
};
}  // namespace snip
