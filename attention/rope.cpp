#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace evenkeel {
namespace {

constexpr const char* kOp = "rope";

void check_positive(const char* name, double value) {
    EVENKEEL_CHECK_CODE(std::isfinite(value) && value > 0.0, ErrorCode::kConfig, kOp, "rope.", name,
                        ": got ", value, ", want a positive number");
}

void check_scaling(const RopeConfig& config) {
    if (config.scaling == RopeConfig::Scaling::kNone) return;
    EVENKEEL_CHECK_CODE(std::isfinite(config.factor) && config.factor >= 1.0, ErrorCode::kConfig,
                        kOp, "rope.factor: got ", config.factor,
                        ", want the context extension, at least 1");
    if (config.scaling == RopeConfig::Scaling::kLinear) return;
    EVENKEEL_CHECK_CODE(config.original_max_position > 0, ErrorCode::kConfig, kOp,
                        "rope.original_max_position: got ", config.original_max_position,
                        ", want the trained context, at least 1");
    if (config.scaling == RopeConfig::Scaling::kLlama3) {
        check_positive("low_freq_factor", config.low_freq_factor);
        EVENKEEL_CHECK_CODE(config.high_freq_factor > config.low_freq_factor, ErrorCode::kConfig,
                            kOp, "rope.high_freq_factor: got ", config.high_freq_factor,
                            ", want more than rope.low_freq_factor ", config.low_freq_factor);
    } else {
        check_positive("beta_slow", config.beta_slow);
        EVENKEEL_CHECK_CODE(config.beta_fast > config.beta_slow, ErrorCode::kConfig, kOp,
                            "rope.beta_fast: got ", config.beta_fast,
                            ", want more than rope.beta_slow ", config.beta_slow);
        EVENKEEL_CHECK_CODE(
            std::isfinite(config.attention_factor) && config.attention_factor >= 0.0,
            ErrorCode::kConfig, kOp, "rope.attention_factor: got ", config.attention_factor,
            ", want 0 (automatic) or a positive number");
    }
}

// Full turns that a pair makes over the trained context decide how far it is slowed down: many turns
// tell neighbours apart and stay, less than one turn would leave the trained range and is interpolated.
double llama3_frequency(const RopeConfig& config, double frequency) {
    const double turns =
        static_cast<double>(config.original_max_position) * frequency / (2.0 * std::numbers::pi);
    const double keep = std::clamp(
        (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor), 0.0,
        1.0);
    return keep * frequency + (1.0 - keep) * frequency / config.factor;
}

// The (fractional) pair index that makes this many turns over the trained context.
double yarn_pair_of_turns(const RopeConfig& config, double turns, std::int64_t rotary_dim) {
    const double wavelength = static_cast<double>(config.original_max_position) / turns;
    return static_cast<double>(rotary_dim) * std::log(wavelength / (2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
}

}  // namespace

void RopeConfig::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kLayouts[] = {"half_split", "interleaved"};
    static constexpr const char* kScalings[] = {"none", "linear", "llama3", "yarn"};
    v.field("theta", theta, "base of the rotation frequencies");
    v.field("rotary_fraction", rotary_fraction, "part of head_dim that turns; 0: no rotation");
    v.choice("layout", layout, kLayouts, "which channels form a pair");
    v.choice("scaling", scaling, kScalings, "context extension");
    v.field("factor", factor, "context extension factor of linear, llama3 and yarn");
    v.field("low_freq_factor", low_freq_factor, "llama3: turns below which a pair is interpolated");
    v.field("high_freq_factor", high_freq_factor, "llama3: turns above which a pair is kept");
    v.field("beta_fast", beta_fast, "yarn: turns above which a pair is kept");
    v.field("beta_slow", beta_slow, "yarn: turns below which a pair is interpolated");
    v.field("attention_factor", attention_factor,
            "yarn: cos and sin times this; 0: 0.1 ln(factor) + 1");
    v.field("original_max_position", original_max_position, "llama3, yarn: trained context length");
}

std::int64_t RopeConfig::rotary_dim(std::int64_t head_dim) const {
    EVENKEEL_CHECK_CODE(rotary_fraction >= 0.0 && rotary_fraction <= 1.0, ErrorCode::kConfig, kOp,
                        "rope.rotary_fraction: got ", rotary_fraction, ", want 0 to 1");
    const double exact = rotary_fraction * static_cast<double>(head_dim);
    const auto channels = static_cast<std::int64_t>(std::llround(exact));
    EVENKEEL_CHECK_CODE(std::abs(exact - static_cast<double>(channels)) < 1e-6 && channels % 2 == 0,
                        ErrorCode::kConfig, kOp, "rope.rotary_fraction: got ", rotary_fraction,
                        " of head_dim ", head_dim, " = ", exact,
                        " channels, want an even number: channels turn in pairs");
    return channels;
}

std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim) {
    const std::int64_t rotary_dim = config.rotary_dim(head_dim);
    if (rotary_dim == 0) return {};
    EVENKEEL_CHECK_CODE(std::isfinite(config.theta) && config.theta > 1.0, ErrorCode::kConfig, kOp,
                        "rope.theta: got ", config.theta, ", want more than 1");
    check_scaling(config);

    std::vector<double> frequencies(static_cast<std::size_t>(rotary_dim / 2));
    for (std::size_t p = 0; p < frequencies.size(); ++p) {
        frequencies[p] =
            std::pow(config.theta, -2.0 * static_cast<double>(p) / static_cast<double>(rotary_dim));
    }
    switch (config.scaling) {
        case RopeConfig::Scaling::kNone:
            break;
        case RopeConfig::Scaling::kLinear:
            for (double& frequency : frequencies) frequency /= config.factor;
            break;
        case RopeConfig::Scaling::kLlama3:
            for (double& frequency : frequencies) frequency = llama3_frequency(config, frequency);
            break;
        case RopeConfig::Scaling::kYarn: {
            const double low =
                std::max(0.0, std::floor(yarn_pair_of_turns(config, config.beta_fast, rotary_dim)));
            const double high =
                std::min(static_cast<double>(rotary_dim - 1),
                         std::ceil(yarn_pair_of_turns(config, config.beta_slow, rotary_dim)));
            const double width = std::max(high - low, 1e-3);
            for (std::size_t p = 0; p < frequencies.size(); ++p) {
                const double slow = std::clamp((static_cast<double>(p) - low) / width, 0.0, 1.0);
                frequencies[p] *= 1.0 - slow + slow / config.factor;
            }
            break;
        }
    }
    return frequencies;
}

double rope_magnitude(const RopeConfig& config) {
    if (config.scaling != RopeConfig::Scaling::kYarn) return 1.0;
    return config.attention_factor > 0.0 ? config.attention_factor
                                         : 0.1 * std::log(config.factor) + 1.0;
}

RopeTable make_rope_table(const RopeConfig& config,
                          std::int64_t head_dim,
                          std::int64_t first,
                          std::int64_t count,
                          Device device) {
    EVENKEEL_CHECK(first >= 0 && count >= 0, kOp, "positions: got ", count, " from ", first,
                   ", want 0 or more of each");
    const std::vector<double> frequencies = rope_frequencies(config, head_dim);
    const auto pairs = static_cast<std::int64_t>(frequencies.size());
    RopeTable table;
    table.first = first;
    table.count = count;
    table.rotary_dim = 2 * pairs;
    table.layout = config.layout;
    if (pairs == 0) return table;

    const double magnitude = rope_magnitude(config);
    table.cos = Tensor::uninitialized({count, pairs}, DType::kFloat32);
    table.sin = Tensor::uninitialized({count, pairs}, DType::kFloat32);
    float* cos = table.cos.data<float>();
    float* sin = table.sin.data<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t p = 0; p < pairs; ++p) {
            const double angle =
                static_cast<double>(first + t) * frequencies[static_cast<std::size_t>(p)];
            cos[t * pairs + p] = static_cast<float>(magnitude * std::cos(angle));
            sin[t * pairs + p] = static_cast<float>(magnitude * std::sin(angle));
        }
    }
    table.cos = table.cos.to(device);
    table.sin = table.sin.to(device);
    return table;
}

}  // namespace evenkeel
