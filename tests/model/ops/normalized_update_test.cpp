#include "model/ops/normalized_update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;
using testing::on_cpu;
using testing::to_doubles;

constexpr double kFactor = 0.3;

// The same formulas in double (the reference) and in float (the plain implementation).
template <typename Real>
struct Formulas {
    using Values = std::vector<Real>;

    static Real length(const Real* x, std::size_t width) {
        Real sum = 0;
        for (std::size_t c = 0; c < width; ++c) sum += x[c] * x[c];
        return std::sqrt(sum);
    }
    static Real divided(Real value, Real length) { return length == 0 ? Real(0) : value / length; }

    static Values forward(const Values& h, const Values& a, const Values& parameter) {
        const std::size_t width = parameter.size();
        Values y(h.size());
        for (std::size_t i = 0; i < h.size(); i += width) {
            const Real of_a = length(&a[i], width);
            for (std::size_t c = 0; c < width; ++c) {
                const Real alpha = std::abs(parameter[c]) * static_cast<Real>(kFactor);
                y[i + c] = h[i + c] + alpha * (divided(a[i + c], of_a) - h[i + c]);
            }
            const Real of_y = length(&y[i], width);
            for (std::size_t c = 0; c < width; ++c) y[i + c] = divided(y[i + c], of_y);
        }
        return y;
    }

    struct Gradients {
        Values dh, da, dparameter;
    };
    // By the Jacobian of Norm, (1 - n n^T) / |x|, written out.
    static Gradients backward(const Values& dy,
                              const Values& h,
                              const Values& a,
                              const Values& parameter) {
        const std::size_t width = parameter.size();
        const Values y = forward(h, a, parameter);
        Gradients g{Values(h.size()), Values(h.size()), Values(width, Real(0))};
        for (std::size_t i = 0; i < h.size(); i += width) {
            const Real of_a = length(&a[i], width);
            Values b(width), sum(width), dsum(width), db(width);
            for (std::size_t c = 0; c < width; ++c) {
                const Real alpha = std::abs(parameter[c]) * static_cast<Real>(kFactor);
                b[c] = divided(a[i + c], of_a);
                sum[c] = h[i + c] + alpha * (b[c] - h[i + c]);
            }
            const Real of_sum = length(sum.data(), width);
            Real along = 0;
            for (std::size_t c = 0; c < width; ++c) along += dy[i + c] * y[i + c];
            for (std::size_t c = 0; c < width; ++c) {
                dsum[c] = divided(dy[i + c] - along * y[i + c], of_sum);
            }
            along = 0;
            for (std::size_t c = 0; c < width; ++c) {
                const Real alpha = std::abs(parameter[c]) * static_cast<Real>(kFactor);
                const Real sign = parameter[c] < 0 ? Real(-1) : Real(1);
                g.dh[i + c] = (1 - alpha) * dsum[c];
                db[c] = alpha * dsum[c];
                along += db[c] * b[c];
                g.dparameter[c] += sign * static_cast<Real>(kFactor) * dsum[c] * (b[c] - h[i + c]);
            }
            for (std::size_t c = 0; c < width; ++c) {
                g.da[i + c] = divided(db[c] - along * b[c], of_a);
            }
        }
        return g;
    }
};

struct Case {
    DType dtype;
    std::int64_t rows, width;
};

constexpr Case kCases[] = {{DType::kFloat32, 5, 33},
                           {DType::kFloat32, 70, 16},
                           {DType::kBFloat16, 37, 64},
                           {DType::kBFloat16, 3, 300}};

template <typename Real>
std::vector<Real> values_of(const Tensor& tensor) {
    const auto doubles = to_doubles(tensor);
    return {doubles.begin(), doubles.end()};
}

Tensor from(const std::vector<float>& values, const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    std::copy(values.begin(), values.end(), tensor.data<float>());
    return tensor.to(dtype);
}

class NormalizedUpdateTest : public ::testing::TestWithParam<Device> {};

// By hand: a = (3, 4) points to (0.6, 0.8); h = (1, 0), alpha = (0.5, 0.5): h + alpha (b - h) = (0.8, 0.4), whose
// length is sqrt(0.8).
TEST_P(NormalizedUpdateTest, MakesTheStepThatOneMakesByHand) {
    const auto vector = [&](std::vector<float> v) {
        return on(GetParam(), from(v, {1, 2}, DType::kFloat32));
    };
    const Tensor h = vector({1, 0}), a = vector({3, 4}), y = vector({0, 0});
    const Tensor parameter = on(GetParam(), from({2.5f, -2.5f}, {2}, DType::kFloat32));
    const Tensor inverse = vector({0, 0});
    normalized_update_forward(h, a, parameter, 0.2, y, inverse);
    const double length = std::sqrt(0.8);
    EXPECT_TRUE(testing::near(y, {0.8 / length, 0.4 / length}, 1e-6, 0.0));
    EXPECT_TRUE(testing::near(inverse, {0.2, 1.0 / length}, 1e-6, 0.0));
    // dy = (1, 0): y = (2, 1) / sqrt(5), so d(sum) = (0.2, -0.4) / length.
    const Tensor dy = vector({1, 0}), dh = vector({0, 0}), da = vector({0, 0});
    const Tensor dparameter = on(GetParam(), from({0, 0}, {2}, DType::kFloat32));
    normalized_update_backward(dy, h, a, parameter, 0.2, inverse, dh, da, dparameter);
    EXPECT_TRUE(testing::near(dh, {0.1 / length, -0.2 / length}, 1e-5, 0.0));
    // db = (0.1, -0.2) / length, along b -0.1 / length: da = ((0.16, -0.12) / length) / 5.
    EXPECT_TRUE(testing::near(da, {0.032 / length, -0.024 / length}, 1e-5, 0.0));
    // b - h = (-0.4, 0.8); the second parameter is negative.
    EXPECT_TRUE(testing::near(dparameter, {-0.2 * 0.08 / length, 0.2 * 0.32 / length}, 1e-5, 0.0));
}

TEST_P(NormalizedUpdateTest, ErrsNoMoreThanThePlainFormulasInEveryShapeAndType) {
    for (const Case& test : kCases) {
        SCOPED_TRACE(concat(name_of(test.dtype), " ", test.rows, " x ", test.width));
        const Shape shape{test.rows, test.width};
        const Tensor h = gaussian(shape, test.dtype, 1, 0.2), a = gaussian(shape, test.dtype, 2);
        const Tensor dy = gaussian(shape, test.dtype, 3);
        a.slice(0, 1, 2).zero();
        const Tensor parameter = gaussian({test.width}, DType::kFloat32, 4);
        const Tensor y = on(GetParam(), Tensor::zeros(shape, test.dtype));
        const Tensor inverse = on(GetParam(), Tensor::zeros({test.rows, 2}, DType::kFloat32));
        const Tensor h_on = on(GetParam(), h), a_on = on(GetParam(), a);
        const Tensor parameter_on = on(GetParam(), parameter);
        normalized_update_forward(h_on, a_on, parameter_on, kFactor, y, inverse);
        using Reference = Formulas<double>;
        using Plain = Formulas<float>;
        const auto want = Reference::forward(values_of<double>(h), values_of<double>(a),
                                             values_of<double>(parameter));
        const auto plain =
            Plain::forward(values_of<float>(h), values_of<float>(a), values_of<float>(parameter));
        EXPECT_TRUE(
            testing::within_error_of_plain(on_cpu(y), from(plain, shape, test.dtype), want, 2.0));

        const Tensor dh = on(GetParam(), dy).clone();  // dh may be dy
        const Tensor da = on(GetParam(), Tensor::zeros(shape, test.dtype));
        const Tensor dparameter = on(GetParam(), Tensor::zeros({test.width}, DType::kFloat32));
        normalized_update_backward(dh, h_on, a_on, parameter_on, kFactor, inverse, dh, da,
                                   dparameter);
        const auto gradients =
            Reference::backward(values_of<double>(dy), values_of<double>(h), values_of<double>(a),
                                values_of<double>(parameter));
        const auto rough = Plain::backward(values_of<float>(dy), values_of<float>(h),
                                           values_of<float>(a), values_of<float>(parameter));
        EXPECT_TRUE(testing::within_error_of_plain(on_cpu(dh), from(rough.dh, shape, test.dtype),
                                                   gradients.dh, 3.0));
        EXPECT_TRUE(testing::within_error_of_plain(on_cpu(da), from(rough.da, shape, test.dtype),
                                                   gradients.da, 3.0));
        EXPECT_TRUE(testing::within_error_of_plain(
            on_cpu(dparameter), from(rough.dparameter, {test.width}, DType::kFloat32),
            gradients.dparameter, 3.0));
    }
}

TEST(NormalizedUpdate, GradientFormulasAreThoseOfFiniteDifferences) {
    using Reference = Formulas<double>;
    auto h = to_doubles(gaussian({2, 5}, DType::kFloat32, 1));
    auto a = to_doubles(gaussian({2, 5}, DType::kFloat32, 2));
    auto parameter = to_doubles(gaussian({5}, DType::kFloat32, 4));
    const auto dy = to_doubles(gaussian({2, 5}, DType::kFloat32, 3));
    const auto gradients = Reference::backward(dy, h, a, parameter);
    const auto objective = [&] {
        const auto y = Reference::forward(h, a, parameter);
        double sum = 0.0;
        for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
    };
    const auto check = [&](std::vector<double>& input, const std::vector<double>& gradient) {
        for (std::size_t i = 0; i < input.size(); ++i) {
            const double at = input[i], step = 1e-6;
            input[i] = at + step;
            const double above = objective();
            input[i] = at - step;
            const double below = objective();
            input[i] = at;
            EXPECT_NEAR((above - below) / (2.0 * step), gradient[i], 1e-7) << i;
        }
    };
    check(h, gradients.dh);
    check(a, gradients.da);
    check(parameter, gradients.dparameter);
}

TEST(NormalizedUpdate, RefusesWrongShapes) {
    const Tensor h = Tensor::zeros({2, 4}, DType::kFloat32);
    const Tensor inverse = Tensor::zeros({2, 2}, DType::kFloat32);
    const Tensor parameter = Tensor::zeros({4}, DType::kFloat32);
    EXPECT_THROW(normalized_update_forward(h, Tensor::zeros({2, 3}, DType::kFloat32), parameter,
                                           1.0, h, inverse),
                 Error);
    EXPECT_THROW(normalized_update_forward(h, h, inverse, 1.0, h, inverse), Error);
    EXPECT_THROW(normalized_update_forward(h, h, parameter, 0.0, h, inverse), Error);
}

INSTANTIATE_TEST_SUITE_P(,
                         NormalizedUpdateTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
