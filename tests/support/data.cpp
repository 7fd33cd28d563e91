#include "tests/support/data.h"

#include <cmath>

#include "framework/rng.h"

namespace evenkeel::testing {

std::string name_of(DataKind kind) {
    switch (kind) {
        case DataKind::kGaussian:
            return "gaussian";
        case DataKind::kTied:
            return "tied";
        case DataKind::kOneHot:
            return "one_hot";
        case DataKind::kMassiveActivations:
            return "massive_activations";
        case DataKind::kZero:
            return "zero";
    }
    return "?";
}

Tensor gaussian(const Shape& shape, DType dtype, std::uint64_t seed, double deviation) {
    const CounterRng rng(seed, purpose("test data"));
    Tensor values = Tensor::uninitialized(shape, DType::kFloat32);
    float* data = values.data<float>();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        data[i] = static_cast<float>(deviation * rng.normal(static_cast<std::uint64_t>(i)));
    }
    return values.to(dtype);
}

Tensor make_data(DataKind kind, const Shape& shape, DType dtype, std::uint64_t seed) {
    Tensor values = gaussian(shape, DType::kFloat32, seed);
    float* data = values.data<float>();
    const std::int64_t width = shape.back();
    const std::int64_t rows = width == 0 ? 0 : values.numel() / width;
    const CounterRng rng(seed, purpose("test rows"));
    for (std::int64_t r = 0; r < rows; ++r) {
        float* row = data + r * width;
        const auto channel = static_cast<std::int64_t>(rng.below(r, width));
        for (std::int64_t c = 0; c < width; ++c) {
            switch (kind) {
                case DataKind::kGaussian:
                    break;
                case DataKind::kTied:
                    row[c] = data[c];
                    break;
                case DataKind::kOneHot:
                    row[c] = c == channel ? 30.0f : 0.0f;
                    break;
                case DataKind::kMassiveActivations:
                    if (r % 7 == 3) row[c] *= 1000.0f;
                    break;
                case DataKind::kZero:
                    row[c] = 0.0f;
                    break;
            }
        }
    }
    return values.to(dtype);
}

Tensor poisoned(const Shape& shape, DType dtype) { return Tensor::full(shape, NAN, dtype); }

}  // namespace evenkeel::testing
