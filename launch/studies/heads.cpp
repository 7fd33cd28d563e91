#include "launch/studies/heads.h"

#include <bit>

#include "framework/rng.h"

namespace evenkeel::study {

// Little-endian float64; CMake makes them from the files.
extern const unsigned char kDriftBaseQ[kDriftTokens * kDriftWidth * 8];
extern const unsigned char kDriftBaseK[kDriftTokens * kDriftWidth * 8];

namespace {

std::vector<double> decoded(const unsigned char* bytes) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < kDriftTokens * kDriftWidth; ++i) {
        std::uint64_t word = 0;
        for (int b = 7; b >= 0; --b) word = word << 8 | bytes[8 * i + b];
        values.push_back(std::bit_cast<double>(word));
    }
    return values;
}

}  // namespace

std::vector<double> drift_base_q() { return decoded(kDriftBaseQ); }
std::vector<double> drift_base_k() { return decoded(kDriftBaseK); }

std::vector<double> scaled(std::vector<double> values, double factor) {
    for (double& value : values) value *= factor;
    return values;
}

Tensor to_tensor(const std::vector<double>& values, const Shape& shape) {
    const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    EVENKEEL_CHECK(tensor.numel() == static_cast<std::int64_t>(values.size()), "to_tensor",
                   "values: got ", values.size(), ", want ", tensor.numel());
    for (std::size_t i = 0; i < values.size(); ++i) {
        tensor.data<float>()[i] = static_cast<float>(values[i]);
    }
    return tensor;
}

std::vector<double> normals(std::size_t count, std::string_view name, std::uint64_t seed) {
    const CounterRng rng(seed, purpose(name));
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = rng.normal(i);
    return values;
}

}  // namespace evenkeel::study
