// What Python may use is marked where it is defined. build.py collects the marks, border.hpp turns
// them into declarations, and Python makes its ctypes prototypes and structures from those: nothing
// is written twice.
#pragma once

#define SNIP_KERNEL static  // SNIP_KERNEL void name(...): a function of an instruction set
#define SNIP_STRUCT struct  // a struct that Python fills or reads; its fields come before its functions
#define SNIP_ENUM enum      // numbers that kernels/constants.py must have too
