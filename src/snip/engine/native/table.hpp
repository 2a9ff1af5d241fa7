// What one instruction set provides: its kernels, and the declarations that Python reads.
#pragma once
#include <stdint.h>

namespace snip {

typedef void (*AnyKernel)();  // returns a Status, for arguments of the types that stand beside it

struct NamedKernel {
    const char* name;
    AnyKernel address;
    const char* const* types;  // of its arguments, up to a null
};

struct Field {
    const char* owner;
    const char* name;  // null for the struct itself
    const char* type;
    int64_t offset, size;
};

struct Constant {
    const char* name;
    int64_t value;
};

// The arrays end with a null name (owner of a field).
struct Table {
    const NamedKernel* kernels;
    const Field* fields;
    const Constant* constants;
    int32_t vector_floats;
};

}  // namespace snip
