// AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2), on fp32
// master weights.
#pragma once

#include <cstdint>

#include "framework/config.h"
#include "framework/parameter.h"

namespace evenkeel {

struct AdamWConfig {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;  // applied as lr * weight_decay * w, only where a parameter says so
    void visit_fields(ConfigVisitor& v);
    void validate() const;  // throws kConfig
};

// One update of every parameter, number `step` counting from 1 (for the bias correction):
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w -= lr * ( m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * w )
// in fp32, then refreshes each value from its master. Gradients are left as they are. Element-wise and
// of correctly rounded operations only, so the result depends neither on threads nor on how parameters
// are sharded. Tensors of a parameter must be contiguous; NaN and infinity pass through.
void adamw_step(const ParameterList& parameters,
                const AdamWConfig& config,
                double lr,
                double grad_scale,
                std::int64_t step);

// Sets every gradient to zero.
void zero_gradients(const ParameterList& parameters);

}  // namespace evenkeel
