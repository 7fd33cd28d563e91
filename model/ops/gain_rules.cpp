#include "model/ops/gain_rules.h"

#include <algorithm>
#include <cmath>

#include "model/cuda/gain_rules.h"

namespace evenkeel {
namespace {

void check_floats(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
    check_dtype(op, name, tensor, DType::kFloat32);
    EVENKEEL_CHECK(tensor.device() == like.device(), op, name, ": got ", name_of(tensor.device()),
                   ", want ", name_of(like.device()));
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
}

float gain_of(const GainLimits& limits, float parameter) {
    return limits.offset + parameter / limits.unit;
}

float pulled(float parameter, const float* start, float pull) {
    return start != nullptr ? std::fma(pull, *start - parameter, parameter) : parameter;
}

// The parameter of the same gain, or of one that is as large as it may be.
float clamped(const GainLimits& limits, float parameter, float largest) {
    const float gain = gain_of(limits, parameter);
    if (!(std::abs(gain) > largest)) return parameter;
    const float none = -limits.offset * limits.unit;  // of a gain of 0
    float found = (std::copysign(largest, gain) - limits.offset) * limits.unit;
    for (int step = 0; step < 4 && std::abs(gain_of(limits, found)) > largest; ++step) {
        found = std::nextafter(found, none);
    }
    return found;
}

// The channel that turns with this one; itself where it does not turn.
std::int64_t partner(const GainLimits& limits, std::int64_t channel) {
    if (channel >= limits.rotary_dim) return channel;
    if (limits.interleaved) return channel ^ 1;
    const std::int64_t half = limits.rotary_dim / 2;
    return channel < half ? channel + half : channel - half;
}

void hold_on_cpu(const GainLimits& limits,
                 const float* q_start,
                 const float* k_start,
                 const Tensor& q,
                 const Tensor& k) {
    const std::int64_t D = q.size(1), group = q.size(0) / k.size(0);
    float* key = k.data<float>();
    for (std::int64_t i = 0; k_start != nullptr && i < k.numel(); ++i) {
        key[i] = pulled(key[i], k_start + i, limits.pull);
    }
    float* query = q.data<float>();
    for (std::int64_t i = 0; i < q.numel(); ++i) {
        const std::int64_t channel = i % D;
        const float* of_head = key + i / D / group * D;
        const float beside = std::max(std::abs(gain_of(limits, of_head[channel])),
                                      std::abs(gain_of(limits, of_head[partner(limits, channel)])));
        const float limit = channel < limits.rotary_dim ? limits.turned : limits.unturned;
        const float* start = q_start != nullptr ? q_start + i : nullptr;
        query[i] = clamped(limits, pulled(query[i], start, limits.pull), limit / beside);
    }
}

}  // namespace

void advance_anneal(std::int64_t steps, bool advance, const Tensor& done, const Tensor& lambda) {
    constexpr const char* kOp = "advance_anneal";
    check_shape(kOp, "done", done, {1});
    check_shape(kOp, "lambda", lambda, {1});
    check_floats(kOp, "done", done, done);
    check_floats(kOp, "lambda", lambda, done);
    EVENKEEL_CHECK(steps > 0, kOp, "steps: got ", steps, ", want more than 0");
    const auto all = static_cast<float>(steps);
    if (done.device() == Device::kCuda) return cuda::advance_anneal(all, advance, done, lambda);
    float& count = *done.data<float>();
    count = std::min(advance ? count + 1.0f : count, all);
    *lambda.data<float>() = count / all;
}

GainLimits gain_limits(const AttentionConfig& config) {
    const QkNormConfig& norm = config.qk_norm;
    GainLimits limits;
    limits.pull = static_cast<float>(norm.gain_pull);
    limits.rotary_dim = config.rope.rotary_dim(config.head_dim);
    limits.interleaved = config.rope.layout == RopeLayout::kInterleaved;
    limits.offset = static_cast<float>(norm.gain_offset);
    limits.unit = static_cast<float>(norm.gain_unit);
    const double bound = norm.gain_bound, cap = config.softcap;
    if (bound == 0.0 || (cap > 0.0 && bound >= cap)) return limits;
    // What the cap makes the bound of.
    const double logit = cap > 0.0 ? cap * std::atanh(bound / cap) : bound;
    const double lengths =
        norm.kind == QkNormKind::kL2 ? 1.0 : static_cast<double>(config.head_dim);
    const double product = logit / (config.logit_scale() * lengths);
    const double magnitude = std::max(1.0, rope_magnitude(config.rope));
    limits.unturned = static_cast<float>(product);
    limits.turned = static_cast<float>(product / (magnitude * magnitude));
    return limits;
}

void hold_gains(const GainLimits& limits,
                const Tensor& q_start,
                const Tensor& k_start,
                const Tensor& q,
                const Tensor& k) {
    constexpr const char* kOp = "hold_gains";
    EVENKEEL_CHECK(q.defined() && k.defined() && q.rank() == 2 && k.rank() == 2 &&
                       q.size(1) == k.size(1) && k.size(0) > 0 && q.size(0) % k.size(0) == 0,
                   kOp, "k: got ", k.defined() ? to_string(k.shape()) : "no tensor", " for q ",
                   q.defined() ? to_string(q.shape()) : "no tensor",
                   ", want [K, D] for [a multiple of K, D]");
    check_floats(kOp, "q", q, q);
    check_floats(kOp, "k", k, q);
    const bool pulls = limits.pull > 0.0f;
    EVENKEEL_CHECK(q_start.defined() == pulls && k_start.defined() == pulls, kOp, "starts: got ",
                   q_start.defined() || k_start.defined() ? "some" : "none", " for a pull of ",
                   limits.pull);
    if (pulls) {
        check_shape(kOp, "q_start", q_start, q.shape());
        check_shape(kOp, "k_start", k_start, k.shape());
        check_floats(kOp, "q_start", q_start, q);
        check_floats(kOp, "k_start", k_start, q);
    }
    if (q.numel() == 0) return;
    const float* q_from = pulls ? q_start.data<float>() : nullptr;
    const float* k_from = pulls ? k_start.data<float>() : nullptr;
    switch (q.device()) {
        case Device::kCpu:
            return hold_on_cpu(limits, q_from, k_from, q, k);
        case Device::kCuda:
            return cuda::hold_gains(limits, q_from, k_from, q, k);
    }
}

}  // namespace evenkeel
