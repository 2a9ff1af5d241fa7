#define SNIP_ISA avx2
#include "isa.hpp"
