// Errors inside kernels. They are C++ exceptions, also in a team of threads, and leave the library as
// a status (border.hpp), which Python turns into an exception again (kernels/library.py).
#pragma once
#include <stdint.h>

#include "marks.hpp"

namespace snip {

SNIP_ENUM Status { DONE = 0, REFUSED = 1, NO_MEMORY = 2, NO_THREADS = 3, FAILED = 4 };

// Sizes that kernels assume.
SNIP_ENUM Limit {
    MOST_LAYERS = 64,
    MOST_LANES = 64,
    MOST_POSITIONS = 255
};

// Throws REFUSED. The sentence tells what is wrong with the value, which follows it.
[[noreturn]] void refuse(const char* sentence, int64_t value);

// Refuses numbers of things, such as rows or samples, that are negative.
template <class... Counts>
static inline void check_counts(Counts... counts) {
    const int64_t all[] = {int64_t(counts)...};
    for (int64_t count : all)
        if (count < 0) refuse("a size must not be negative, such as", count);
}

// Refuses addresses that are null.
template <class... Addresses>
static inline void check_given(const Addresses*... addresses) {
    const void* all[] = {addresses...};
    for (const void* address : all)
        if (!address) refuse("something that must be read or written has the address", 0);
}

// Throws NO_MEMORY.
[[noreturn]] void no_memory(int64_t bytes);

// The status of the exception being handled. Its sentence is kept for this thread (snip_error).
int32_t status_of_exception();

}  // namespace snip
