// Scratch memory of threads.
#pragma once
#include <stdint.h>

namespace snip {

enum ScratchSlot {
    PACKED_INPUT,
    PARTIAL_OUTPUT,
    ENTRIES,
    MASKED,
    PARTIAL_SUMS,
    STATE,
    NETWORK_STATES,
    NETWORK_GRADIENTS,
    NETWORK_PARTS,
    SLOTS
};

// What a thread keeps between calls, in all slots together. Larger buffers are given back.
constexpr int64_t KEPT_BYTES = 64 << 20;

// A buffer of this thread, 64-byte aligned, which stays valid until the kernel returns or asks for a
// larger one in the same slot. New memory is zero; a kept buffer has what the last call left.
float* scratch(ScratchSlot slot, int64_t floats);

// Gives back the largest buffers of this thread until at most KEPT_BYTES are left.
void trim_scratch();

}  // namespace snip
