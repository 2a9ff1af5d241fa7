// Runs numbered tasks on several threads; the caller takes part.
#pragma once
#include <cstdint>

namespace snip {

// Calls run(context, task) once for each task in [0, tasks), on at most `threads` threads.
void parallel_for(int64_t tasks, int threads, void (*run)(void* context, int64_t task),
                  void* context);

// The same for a lambda. No std::function: kernel files must not instantiate library templates,
// whose code for a newer instruction set the linker could then pick for all.
template <class F>
static inline void parallel(int64_t tasks, int threads, F& body) {
    parallel_for(
        tasks, threads, [](void* f, int64_t task) { (*static_cast<F*>(f))(task); }, &body);
}

// A buffer of this thread, 64-byte aligned, kept between calls; `slot` tells buffers in use at the
// same time apart. New memory is zero.
float* scratch(int slot, int64_t floats);

enum ScratchSlot { PACKED_INPUT, PARTIAL_OUTPUT, ENTRIES, MASKED, PARTIAL_SUMS, STATE, NETWORK_STATES,
                   NETWORK_GRADIENTS, SLOTS };

}  // namespace snip
