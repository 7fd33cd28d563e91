// The CPU back end of qk_norm_rope.h: arguments have been checked.
#pragma once

#include "attention/qk_norm_rope.h"

namespace evenkeel::cpu {

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd);
void qk_norm_rope_backward(const Tensor& dy,
                           const Tensor& x,
                           const Tensor& gain,
                           const Tensor& rstd,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options,
                           const Tensor& dx,
                           const Tensor& dgain,
                           const Tensor& mean);

// A result of more bytes a thread is stored past the caches, where it would not stay; cache_share() at first (without
// an answer 32 MiB). Same numbers either way. For tests and comparisons; not while operations run.
std::int64_t largest_cached_result();
void set_largest_cached_result(std::int64_t bytes);

}  // namespace evenkeel::cpu
