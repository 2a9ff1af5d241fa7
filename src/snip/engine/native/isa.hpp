// Every kernel, for one instruction set: the including file defines SNIP_ISA (a namespace and the
// name that SNIP_KERNELS accepts) and is compiled with that set's flags. Only C headers here: an
// inline function of the C++ library compiled for a newer set could be the copy the linker keeps.
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "conv_plan.hpp"
#include "parallel.hpp"
#include "table.hpp"

namespace SNIP_ISA {
#include "vec.hpp"
#include "linear.hpp"
#include "linear_backward.hpp"
#include "conv_pack.hpp"
#include "conv_forward.hpp"
#include "conv_weights.hpp"
#include "winograd.hpp"
#include "lanes.hpp"
#include "layout.hpp"
#include "norm.hpp"
#include "pool.hpp"
#include "math.hpp"
#include "recurrent.hpp"
#include "gru.hpp"
#include "loss.hpp"
#include "update.hpp"
#include "network.hpp"

#define SNIP_ENTRY(name) {#name, reinterpret_cast<void*>(&name)},
extern const snip::NamedKernel kernels[];
const snip::NamedKernel kernels[] = {SNIP_KERNEL_LIST(SNIP_ENTRY){nullptr, nullptr}};
extern const int vector_floats;
const int vector_floats = VL;
}  // namespace SNIP_ISA
