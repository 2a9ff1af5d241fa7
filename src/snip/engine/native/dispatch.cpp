// Which instruction sets this binary has and this machine runs, and their kernels by name.
#include <cstring>

#include "table.hpp"

#define SNIP_DECLARE(isa)                        \
    namespace isa {                              \
    extern const snip::NamedKernel kernels[];    \
    extern const int vector_floats;              \
    }
SNIP_DECLARE(portable)
#if defined(__x86_64__)
SNIP_DECLARE(avx2)
SNIP_DECLARE(avx512)
#endif

namespace {

struct InstructionSet {
    const char* name;
    const snip::NamedKernel* kernels;
    const int* vector_floats;
    bool (*runs)();
};

// Best first.
const InstructionSet sets[] = {
#if defined(__x86_64__)
    {"avx512", avx512::kernels, &avx512::vector_floats,
     [] { return __builtin_cpu_supports("avx512f") != 0; }},
    {"avx2", avx2::kernels, &avx2::vector_floats,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    {"portable", portable::kernels, &portable::vector_floats, [] { return true; }},
};

const InstructionSet* find(const char* name) {
    for (const InstructionSet& set : sets)
        if (std::strcmp(set.name, name) == 0) return &set;
    return nullptr;
}

}  // namespace

extern "C" {

// The i-th best instruction set of this binary, or null past the last.
const char* snip_set_name(int i) {
    return i < static_cast<int>(sizeof sets / sizeof *sets) ? sets[i].name : nullptr;
}

int snip_set_runs(const char* name) {
    const InstructionSet* set = find(name);
    return set && set->runs();
}

int snip_vector_floats(const char* name) {
    const InstructionSet* set = find(name);
    return set ? *set->vector_floats : 0;
}

void* snip_kernel(const char* set_name, const char* name) {
    const InstructionSet* set = find(set_name);
    if (!set) return nullptr;
    for (const snip::NamedKernel* k = set->kernels; k->name; k++)
        if (std::strcmp(k->name, name) == 0) return k->address;
    return nullptr;
}
}
