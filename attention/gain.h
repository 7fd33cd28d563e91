// From what is learned to the factor of a normalised channel, and back.
//
// The linear form:       gain = gain_offset + parameter / gain_unit
// The exponential form:  gain = exp(min(parameter, ln gain_limit)) (Liu et al. 2022, Swin Transformer V2,
//                        section 3.2), whose gradient is 0 beyond the limit.
//
// N heads on this rank, D head width.
#pragma once

#include "attention/attention_config.h"
#include "framework/tensor.h"

namespace evenkeel {

// Whether the kernels take the parameter as it is (with QkNormRopeOptions::gain_offset), so that neither
// function below is needed.
bool is_kernel_gain(const QkNormConfig& config);

// The parameter whose gain is config.gain_init.
double initial_gain_parameter(const QkNormConfig& config);

// parameter fp32, of the shape that config.gain gives a rank: [N, D], [D], [N] or [1]; undefined: no gain.
// Returns the gain of each head and channel, contiguous fp32 [N, D], or [D] from [D]; undefined from none.
// On the parameter's device; waits for nothing.
// lambda [1] fp32 on that device, from 0 to 1 (QkNormRopeOptions): the result is max(gain, 2^-20)^lambda below 1.
// With 1 or undefined it is the gain as it is, whatever its sign.
Tensor effective_gain(const Tensor& parameter,
                      const QkNormConfig& config,
                      std::int64_t heads,
                      std::int64_t head_dim,
                      const Tensor& lambda = {});

// dparameter (like parameter) += the chain rule's product with dgain, which is like the result of
// effective_gain: lambda gain^(lambda - 1) times the form's slope. Sums over heads and channels in double, in a
// fixed order. Where a gain counts as 2^-20 it gets no gradient.
void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const QkNormConfig& config,
                       const Tensor& dparameter,
                       const Tensor& lambda = {});

}  // namespace evenkeel
