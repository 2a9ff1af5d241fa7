// Runs numbered tasks on several threads; the caller takes part.
#pragma once
#include <stdint.h>

namespace snip {

typedef void (*Task)(void* context, int64_t number);

// Calls run(context, number) once for each number in [0, tasks), on at most `threads` threads. What a
// task throws is thrown again here, in the calling thread; tasks not begun by then are left out.
void parallel_for(int64_t tasks, int threads, Task run, void* context);

// The same for a lambda. No std::function: kernel files must not instantiate library templates,
// whose code for a newer instruction set the linker could then pick for all.
template <class F>
static inline void parallel(int64_t tasks, int threads, F& body) {
    parallel_for(tasks, threads, [](void* f, int64_t task) { (*static_cast<F*>(f))(task); }, &body);
}

}  // namespace snip
