// What the two forms of Henry et al. 2020 have in common.
#pragma once

#include <cstdint>

namespace evenkeel {

// g_0 = log2(L^2 - L), the number of pairs of different positions, for L positions (section 3; the paper
// takes the 97.5th percentile of training lengths for L, here it is the longest sequence).
double henry_first_gain(std::int64_t max_seq_len);

}  // namespace evenkeel
