// Every kernel, compiled once for each instruction set with that set's flags (build.py). Only C headers
// are included here: an inline function of the C++ library compiled for a newer set could be the copy
// that the linker keeps for all.
#include "conv_forward.hpp"
#include "conv_weights.hpp"
#include "conversions.hpp"
#include "gru.hpp"
#include "linear.hpp"
#include "linear_backward.hpp"
#include "linear_plain.hpp"
#include "lstm.hpp"
#include "norm.hpp"
#include "pool.hpp"
#include "straight.hpp"
#include "update.hpp"
#include "winograd.hpp"
// Last, as it needs all of them.
#include "border.hpp"
