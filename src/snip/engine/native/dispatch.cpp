// Which instruction sets this binary has and this machine runs, and their kernels by name.
#include <cstring>

#include "table.hpp"

// Weak: a build may leave an instruction set out.
#define SNIP_DECLARE(isa)                                            \
    namespace isa {                                                  \
    extern const snip::NamedKernel kernels[] __attribute__((weak));  \
    extern const int vector_floats __attribute__((weak));            \
    }
SNIP_DECLARE(portable)
SNIP_DECLARE(avx2)
SNIP_DECLARE(avx512)

namespace {

struct InstructionSet {
    const char* name;
    const snip::NamedKernel* kernels;
    const int* vector_floats;
    bool (*runs)();
};

#if defined(__x86_64__)
bool runs_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"); }
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
bool runs_avx512() { return false; }
bool runs_avx2() { return false; }
#endif

// Best first.
const InstructionSet sets[] = {
    {"avx512", avx512::kernels, &avx512::vector_floats, runs_avx512},
    {"avx2", avx2::kernels, &avx2::vector_floats, runs_avx2},
    {"portable", portable::kernels, &portable::vector_floats, [] { return true; }},
};

const InstructionSet* find(const char* name) {
    for (const InstructionSet& set : sets)
        if (std::strcmp(set.name, name) == 0) return &set;
    return nullptr;
}

}  // namespace

extern "C" {

// The i-th best instruction set we know of, or null past the last.
const char* snip_set_name(int i) {
    return i < static_cast<int>(sizeof sets / sizeof *sets) ? sets[i].name : nullptr;
}

int snip_set_runs(const char* name) {
    const InstructionSet* set = find(name);
    return set && set->kernels && set->runs();
}

int snip_vector_floats(const char* name) {
    const InstructionSet* set = find(name);
    return set && set->kernels ? *set->vector_floats : 0;
}

void* snip_kernel(const char* set_name, const char* name) {
    const InstructionSet* set = find(set_name);
    if (!set || !set->kernels) return nullptr;
    for (const snip::NamedKernel* k = set->kernels; k->name; k++)
        if (std::strcmp(k->name, name) == 0) return k->address;
    return nullptr;
}
}
