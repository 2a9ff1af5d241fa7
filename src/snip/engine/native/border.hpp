// Turns the marks of the headers into the table of an instruction set. build.py passes what it
// collected as macros: SNIP_KERNELS(K) is K(name) for each kernel, SNIP_STRUCTS(S, F) is S(struct) and
// F(struct, field) for each struct, SNIP_CONSTANTS(C) is C(name) for each number of an enum.
#pragma once
#include "errors.hpp"
#include "memory.hpp"
#include "table.hpp"
#include "vec.hpp"

#if !defined(SNIP_KERNELS)  // in an editor
#define SNIP_KERNELS(K)
#define SNIP_STRUCTS(S, F)
#define SNIP_CONSTANTS(C)
#endif

namespace snip::SNIP_ISA {

// A type's name in the declarations; types that are not listed do not compile.
template <class T>
struct TypeName;
template <class T>
struct TypeName<T*> {
    static constexpr const char* text = "pointer";
};
#define SNIP_TYPE(type, name)                     \
    template <>                                   \
    struct TypeName<type> {                       \
        static constexpr const char* text = name; \
    };
SNIP_TYPE(int32_t, "int32")
SNIP_TYPE(int64_t, "int64")
SNIP_TYPE(float, "float")
SNIP_TYPE(double, "double")
#define SNIP_NAME_POINTERS(type) \
    SNIP_TYPE(type*, #type "*")  \
    SNIP_TYPE(const type*, #type "*")
#define SNIP_NOTHING(type, field)
SNIP_STRUCTS(SNIP_NAME_POINTERS, SNIP_NOTHING)

// What Python calls instead of the kernel itself: no exception leaves the library, and every call
// gives back the scratch memory above the limit.
template <auto F>
struct Guarded;
template <class... A, void (*F)(A...)>
struct Guarded<F> {
    static int32_t call(A... arguments) {
        int32_t status = DONE;
        try {
            F(arguments...);
        } catch (...) {
            status = status_of_exception();
        }
        trim_scratch();
        return status;
    }
    static constexpr const char* types[] = {TypeName<A>::text..., nullptr};
};

// All of it is constant data: code that ran when the library is loaded would be code for an
// instruction set that the machine may not have.
#define SNIP_ENTRY(name) {#name, reinterpret_cast<AnyKernel>(Guarded<name>::call), Guarded<name>::types},
#define SNIP_SIZE(type) {#type, nullptr, nullptr, 0, sizeof(type)},
#define SNIP_FIELD(type, field)                                                             \
    {#type, #field, TypeName<decltype(type::field)>::text, __builtin_offsetof(type, field), \
     sizeof(type::field)},
#define SNIP_NUMBER(name) {#name, name},
static const NamedKernel kernels[] = {SNIP_KERNELS(SNIP_ENTRY){nullptr, nullptr, nullptr}};
static const Field fields[] = {SNIP_STRUCTS(SNIP_SIZE, SNIP_FIELD){nullptr, nullptr, nullptr, 0, 0}};
static const Constant constants[] = {SNIP_CONSTANTS(SNIP_NUMBER){nullptr, 0}};
extern const Table table;
const Table table = {kernels, fields, constants, VL};

}  // namespace snip::SNIP_ISA
