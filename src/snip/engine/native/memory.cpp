// Scratch memory of threads, and advice to the operating system about large tensors.
#include "memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "errors.hpp"

namespace snip {
namespace {

struct Buffers {
    void* data[SLOTS] = {};
    int64_t bytes[SLOTS] = {};
    int64_t total = 0;

    void release(int slot) {
        std::free(data[slot]);
        total -= bytes[slot];
        data[slot] = nullptr;
        bytes[slot] = 0;
    }
    int largest() const {
        int found = 0;
        for (int slot = 1; slot < SLOTS; slot++)
            if (bytes[slot] > bytes[found]) found = slot;
        return found;
    }
    ~Buffers() {
        for (int slot = 0; slot < SLOTS; slot++) release(slot);
    }
};

thread_local Buffers buffers;

}  // namespace

float* scratch(ScratchSlot slot, int64_t floats) {
    int64_t bytes = (floats * 4 + 127) / 64 * 64;  // one cache line more: vectors may read past the end
    if (buffers.bytes[slot] < bytes) {
        buffers.release(slot);
        void* fresh = nullptr;
        if (posix_memalign(&fresh, 64, static_cast<size_t>(bytes)) != 0) no_memory(bytes);
        std::memset(fresh, 0, static_cast<size_t>(bytes));
        buffers.data[slot] = fresh;
        buffers.bytes[slot] = bytes;
        buffers.total += bytes;
    }
    return static_cast<float*>(buffers.data[slot]);
}

void trim_scratch() {
    while (buffers.total > KEPT_BYTES) buffers.release(buffers.largest());
}

}  // namespace snip

// Bytes of scratch that the calling thread keeps.
extern "C" int64_t snip_scratch_bytes() { return snip::buffers.total; }

// Asks for huge pages behind fresh memory. Touching 34 MB of new memory for the first time took 19 ms
// in small pages and 4 ms in huge ones on the machine this was written on: as long as a whole layer.
// This is advice only: where the system has no huge pages, nothing happens.
extern "C" void snip_prefer_huge_pages(void* start, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = uintptr_t(2) << 20;
    uintptr_t from = (reinterpret_cast<uintptr_t>(start) + page - 1) / page * page;
    uintptr_t to = (reinterpret_cast<uintptr_t>(start) + static_cast<uintptr_t>(bytes)) / page * page;
    if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}
