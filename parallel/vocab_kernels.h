// Rows of logits. Internal.
#pragma once

#include <cstdint>

namespace evenkeel {

// The largest of count >= 1 values; NaN if any is NaN.
float row_max(const float* z, std::int64_t count);
// sum_i exp(z[i] - max). Relative error below 1e-6.
float row_sum_exp(const float* z, float max, std::int64_t count);
// out[i] = exp(z[i] - log_sum_exp) * scale; out may be z.
void row_softmax(const float* z, float log_sum_exp, float scale, float* out, std::int64_t count);

}  // namespace evenkeel
