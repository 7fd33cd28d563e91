#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace evenkeel::testing {
namespace {

std::string coordinates(std::int64_t index, const Shape& shape) {
    Shape position(shape.size());
    for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
        position[i] = index % shape[i];
        index /= shape[i];
    }
    return to_string(position);
}

double error(double got, double want) {
    if (std::isnan(got) && std::isnan(want)) return 0.0;
    if (got == want) return 0.0;  // covers equal infinities
    const double difference = std::abs(got - want);
    return std::isnan(difference) ? INFINITY : difference;
}

double largest_of(DType dtype) { return dtype == DType::kFloat16 ? 65504.0 : 3.3e38; }

// Half the gap between neighbours at 1; fp32 is given twice that.
double rounding_unit(DType dtype) {
    switch (dtype) {
        case DType::kBFloat16:
            return 0x1p-8;
        case DType::kFloat16:
            return 0x1p-11;
        default:
            return 0x1p-23;
    }
}

}  // namespace

std::vector<double> to_doubles(const Tensor& tensor) {
    const Tensor packed = tensor.to(Device::kCpu).contiguous();
    if (packed.dtype() == DType::kFloat64) {
        return {packed.data<double>(), packed.data<double>() + packed.numel()};
    }
    const Tensor wide = packed.to(DType::kFloat32);
    return {wide.data<float>(), wide.data<float>() + wide.numel()};
}

::testing::AssertionResult near(const Tensor& got,
                                const std::vector<double>& want,
                                double relative,
                                double absolute) {
    const std::vector<double> values = to_doubles(got);
    if (values.size() != want.size()) {
        return ::testing::AssertionFailure()
               << "got " << values.size() << " elements, want " << want.size();
    }
    double worst = 0.0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double allowed = absolute + relative * std::abs(want[i]);
        const double excess = error(values[i], want[i]) / std::max(allowed, 1e-300);
        if (excess > worst) worst = excess, at = i;
    }
    if (worst <= 1.0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "worst at " << coordinates(static_cast<std::int64_t>(at), got.shape()) << ": got "
           << values[at] << ", want " << want[at] << ", allowed difference "
           << absolute + relative * std::abs(want[at]);
}

::testing::AssertionResult near(const Tensor& got,
                                const Tensor& want,
                                double relative,
                                double absolute) {
    if (got.shape() != want.shape()) {
        return ::testing::AssertionFailure()
               << "got shape " << to_string(got.shape()) << ", want " << to_string(want.shape());
    }
    return near(got, to_doubles(want), relative, absolute);
}

::testing::AssertionResult same_bits(const Tensor& got, const Tensor& want) {
    if (got.shape() != want.shape() || got.dtype() != want.dtype()) {
        return ::testing::AssertionFailure()
               << "got " << name_of(got.dtype()) << to_string(got.shape()) << ", want "
               << name_of(want.dtype()) << to_string(want.shape());
    }
    const Tensor a = got.to(Device::kCpu).contiguous(), b = want.to(Device::kCpu).contiguous();
    const std::size_t element = size_of(a.dtype());
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        if (std::memcmp(a.raw() + i * element, b.raw() + i * element, element) != 0) {
            return ::testing::AssertionFailure()
                   << "bits differ first at " << coordinates(i, a.shape());
        }
    }
    return ::testing::AssertionSuccess();
}

::testing::AssertionResult within_error_of_plain(const Tensor& got,
                                                 const Tensor& plain,
                                                 const std::vector<double>& reference,
                                                 double factor) {
    const std::vector<double> fast = to_doubles(got), simple = to_doubles(plain);
    if (fast.size() != reference.size() || simple.size() != reference.size()) {
        return ::testing::AssertionFailure() << "sizes differ: got " << fast.size() << ", plain "
                                             << simple.size() << ", reference " << reference.size();
    }
    double fast_error = 0.0, simple_error = 0.0, magnitude = 0.0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
        // Both leave the type's range where the reference does.
        if (std::isinf(simple[i]) && simple[i] == fast[i] &&
            reference[i] / largest_of(got.dtype()) * (simple[i] > 0.0 ? 1.0 : -1.0) > 0.99)
            continue;
        const double e = error(fast[i], reference[i]);
        if (e > fast_error) fast_error = e, at = i;
        const double simple_here = error(simple[i], reference[i]);
        if (!std::isfinite(simple_here)) {
            return ::testing::AssertionFailure()
                   << "no measure: the plain implementation gives " << simple[i] << " at "
                   << coordinates(static_cast<std::int64_t>(i), got.shape()) << ", reference "
                   << reference[i];
        }
        simple_error = std::max(simple_error, simple_here);
        if (std::isfinite(reference[i])) magnitude = std::max(magnitude, std::abs(reference[i]));
    }
    const double allowed = factor * simple_error + 2.0 * rounding_unit(got.dtype()) * magnitude;
    if (fast_error <= allowed) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "worst at " << coordinates(static_cast<std::int64_t>(at), got.shape()) << ": got "
           << fast[at] << ", reference " << reference[at] << ", error " << fast_error
           << ", plain implementation's error " << simple_error << ", allowed " << allowed;
}

double relative_difference(double a, double b) {
    return std::abs(a - b) / std::max({std::abs(a), std::abs(b), 1e-300});
}

}  // namespace evenkeel::testing
