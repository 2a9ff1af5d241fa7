// The C interface that Python loads: which instruction sets this binary has and this machine runs,
// their kernels by name, and the declarations from which Python makes its prototypes.
#include <cstring>
#include <string>

#include "table.hpp"

#if !defined(SNIP_ORIGIN)
#define SNIP_ORIGIN ""
#endif

// Weak: a build may leave an instruction set out.
#define SNIP_DECLARE(isa)                           \
    namespace snip::isa {                           \
    extern const Table table __attribute__((weak)); \
    }
SNIP_DECLARE(portable)
SNIP_DECLARE(avx2)
SNIP_DECLARE(avx512)

namespace {

struct InstructionSet {
    const char* name;
    const snip::Table* table;
    bool (*runs)();
};

#if defined(__x86_64__)
bool runs_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"); }
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
bool runs_avx512() { return false; }
bool runs_avx2() { return false; }
#endif
bool runs_portable() { return true; }

// Best first.
const InstructionSet sets[] = {
    {"avx512", &snip::avx512::table, runs_avx512},
    {"avx2", &snip::avx2::table, runs_avx2},
    {"portable", &snip::portable::table, runs_portable},
};

const snip::Table* find(const char* name) {
    for (const InstructionSet& set : sets)
        if (std::strcmp(set.name, name) == 0) return set.table;
    return nullptr;
}

std::string constant_lines(const snip::Table& table) {
    std::string text;
    for (const snip::Constant* c = table.constants; c->name; c++)
        text += std::string("constant ") + c->name + " " + std::to_string(c->value) + "\n";
    return text;
}

std::string struct_lines(const snip::Table& table) {
    std::string text;
    for (const snip::Field* f = table.fields; f->owner; f++) {
        std::string size = std::to_string(f->size);
        if (f->name)
            text += std::string("field ") + f->name + " " + f->type + " " + std::to_string(f->offset) + " " +
                    size + "\n";
        else
            text += std::string("struct ") + f->owner + " " + size + "\n";
    }
    return text;
}

std::string kernel_lines(const snip::Table& table) {
    std::string text;
    for (const snip::NamedKernel* k = table.kernels; k->name; k++) {
        text += std::string("kernel ") + k->name;
        for (const char* const* type = k->types; *type; type++) text += std::string(" ") + *type;
        text += "\n";
    }
    return text;
}

}  // namespace

extern "C" {

// The version of the package and the digest of the sources that this library was made of.
const char* snip_origin() { return SNIP_ORIGIN; }

// The i-th best instruction set we know of, or null past the last.
const char* snip_set_name(int32_t i) {
    return i < static_cast<int32_t>(sizeof sets / sizeof *sets) ? sets[i].name : nullptr;
}

int32_t snip_set_runs(const char* name) {
    for (const InstructionSet& set : sets)
        if (std::strcmp(set.name, name) == 0) return set.table && set.runs();
    return 0;
}

int32_t snip_vector_floats(const char* name) {
    const snip::Table* table = find(name);
    return table ? table->vector_floats : 0;
}

// Lines "constant NAME VALUE", "struct NAME SIZE" with the "field NAME TYPE OFFSET SIZE" that follow it,
// and "kernel NAME TYPE ...". They are the same for every instruction set.
const char* snip_declarations() {
    static const std::string text = constant_lines(snip::portable::table) +
                                    struct_lines(snip::portable::table) + kernel_lines(snip::portable::table);
    return text.c_str();
}

snip::AnyKernel snip_kernel(const char* set_name, const char* name) {
    const snip::Table* table = find(set_name);
    for (const snip::NamedKernel* k = table ? table->kernels : nullptr; k && k->name; k++)
        if (std::strcmp(k->name, name) == 0) return k->address;
    return nullptr;
}
}
