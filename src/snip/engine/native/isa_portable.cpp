#define SNIP_ISA portable
#include "isa.hpp"
