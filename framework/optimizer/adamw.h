// AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2), on fp32
// master weights.
#pragma once

#include <cstdint>
#include <limits>

#include "framework/config.h"
#include "framework/parameter_buckets.h"

namespace evenkeel {

struct AdamWConfig {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;  // applied as lr * weight_decay * w, only where a parameter says so
    void visit_fields(ConfigVisitor& v);
    void validate() const;  // throws kConfig
};

// What a step's update depends on beside the gradients: {mean loss, squared gradient norm}, [2] fp64 on the
// model's device.
constexpr std::int64_t kLossIndex = 0, kSquaredNormIndex = 1;

// What an update changes.
enum class UpdateScope {
    kAll,
    kFirstPhase,  // parameters with Parameter::first_phase; of others neither weights nor moments
};

// The largest numbers of a step that still makes an update.
struct UpdateLimits {
    double loss = std::numeric_limits<double>::infinity();
    double grad_norm = std::numeric_limits<double>::infinity();
};
// Whether a step with these numbers makes an update: they are finite and within the limits.
bool makes_update(double loss, double grad_norm, const UpdateLimits& limits);

// One update of every parameter in `scope`, number `step` counting from 1 (for the bias correction):
//   g = grad * scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w -= lr * ( m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * w )
// in fp32, then refreshes each value from its master. `numbers` [2] fp64 is on the buckets' device: scale is
// clip_norm / norm where the norm is larger and clip_norm is not 0, else 1; nothing changes, bit for bit, unless
// makes_update of the numbers, which is decided where they are. Gradients are left as they are. Element-wise and of correctly rounded operations only,
// so the result depends neither on threads nor on the device nor on how parameters are sharded; NaN and
// infinity pass through. Waits for nothing on CUDA.
void adamw_step(const ParameterBuckets& buckets,
                const AdamWConfig& config,
                double lr,
                double clip_norm,
                const Tensor& numbers,
                std::int64_t step,
                UpdateScope scope = UpdateScope::kAll,
                const UpdateLimits& limits = {});

}  // namespace evenkeel
