#define SNIP_ISA avx512
#include "isa.hpp"
