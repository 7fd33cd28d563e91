// LayerNorm of the residual stream, and the offset of gains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/isa.h"
#include "model/ops/elementwise.h"
#include "tests/model/ops/elementwise_formulas.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::poisoned;
using testing::tensor_of;
using testing::to_doubles;
using testing::to_floats;
using testing::within_error_of_plain;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr double kEps = 1e-6;

// In double (the reference) and in float (the plain implementation).
template <typename Real>
struct LayerNormFormula {
    using Values = std::vector<Real>;
    struct Row {
        Real mean = 0, rstd = 0;
        Row(const Real* x, std::size_t width) {
            for (std::size_t c = 0; c < width; ++c) mean += x[c];
            mean /= static_cast<Real>(width);
            Real squares = 0;
            for (std::size_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
            rstd = 1 / std::sqrt(squares / static_cast<Real>(width) + static_cast<Real>(kEps));
        }
    };
    static Values forward(const Values& x, const Values& gain, const Values& bias, Real offset) {
        Values y = x;
        for (std::size_t i = 0; i < x.size(); i += gain.size()) {
            const Row row(&x[i], gain.size());
            for (std::size_t c = 0; c < gain.size(); ++c) {
                y[i + c] = (x[i + c] - row.mean) * row.rstd * (offset + gain[c]) +
                           (bias.empty() ? 0 : bias[c]);
            }
        }
        return y;
    }
    struct Gradients {
        Values dx, dgain, dbias;
    };
    static Gradients backward(const Values& dy, const Values& x, const Values& gain, Real offset) {
        const std::size_t width = gain.size();
        Gradients g{Values(x.size()), Values(width), Values(width)};
        for (std::size_t i = 0; i < x.size(); i += width) {
            const Row row(&x[i], width);
            Real mean = 0, along = 0;
            for (std::size_t c = 0; c < width; ++c) {
                const Real u = (x[i + c] - row.mean) * row.rstd, d = dy[i + c];
                g.dgain[c] += d * u;
                g.dbias[c] += d;
                mean += (offset + gain[c]) * d / static_cast<Real>(width);
                along += (offset + gain[c]) * d * u / static_cast<Real>(width);
            }
            for (std::size_t c = 0; c < width; ++c) {
                const Real u = (x[i + c] - row.mean) * row.rstd;
                g.dx[i + c] = row.rstd * ((offset + gain[c]) * dy[i + c] - mean - u * along);
            }
        }
        return g;
    }
};
using Exact = LayerNormFormula<double>;
using Plain = LayerNormFormula<float>;

TEST(LayerNormReferenceTest, GradientsMatchFiniteDifferences) {
    const auto x = to_doubles(gaussian({2, 10}, kFp32, 1));
    const auto dy = to_doubles(gaussian({2, 10}, kFp32, 2));
    const auto gain = to_doubles(gaussian({10}, kFp32, 3));
    const auto bias = to_doubles(gaussian({10}, kFp32, 4));
    const Exact::Gradients got = Exact::backward(dy, x, gain, 0.5);
    const auto expect = [&](const std::vector<double>& gradient, const std::vector<double>& at,
                            auto&& f) {
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            EXPECT_NEAR(gradient[i], testing::finite_difference(f, dy, at, i), 1e-8) << i;
        }
    };
    expect(got.dx, x, [&](const auto& v) { return Exact::forward(v, gain, bias, 0.5); });
    expect(got.dgain, gain, [&](const auto& v) { return Exact::forward(x, v, bias, 0.5); });
    expect(got.dbias, bias, [&](const auto& v) { return Exact::forward(x, gain, v, 0.5); });
}

class LayerNormTest : public ::testing::TestWithParam<Device> {
  protected:
    Tensor there(const Tensor& tensor) const { return testing::on(GetParam(), tensor); }

    // Both directions against the rule for fast paths.
    void check(const Tensor& x, DType gain_type, bool has_bias, bool accumulate) const {
        const Shape& shape = x.shape();
        const DType dtype = x.dtype();
        const std::int64_t width = x.size(-1), rows = x.numel() / width;
        const double offset = has_bias ? 0.0 : 1.0;
        const Tensor dy = gaussian(shape, dtype, 2), gain = gaussian({width}, gain_type, 3);
        const Tensor bias = has_bias ? gaussian({width}, gain_type, 4) : Tensor();
        const Tensor y = there(poisoned(shape, dtype));
        const Tensor statistics = there(poisoned({2, rows}, kFp32));
        layer_norm_forward(there(x), there(gain), has_bias ? there(bias) : bias, kEps, y,
                           statistics, offset);
        const auto floats = [&](const Tensor& t) {
            return t.defined() ? to_floats(t) : std::vector<float>();
        };
        const auto doubles = [&](const Tensor& t) {
            return t.defined() ? to_doubles(t) : std::vector<double>();
        };
        EXPECT_TRUE(within_error_of_plain(
            y,
            tensor_of(
                Plain::forward(floats(x), floats(gain), floats(bias), static_cast<float>(offset)),
                shape, dtype),
            Exact::forward(doubles(x), doubles(gain), doubles(bias), offset), 2.0));

        const Tensor start = accumulate ? gaussian(shape, dtype, 5) : poisoned(shape, dtype);
        const Tensor dx = there(start.clone()), dgain = there(Tensor::full({width}, 1.0f, kFp32));
        const Tensor dbias = has_bias ? there(Tensor::full({width}, 1.0f, kFp32)) : Tensor();
        layer_norm_backward(there(dy), there(x), there(gain), statistics, accumulate, dx, dgain,
                            dbias, offset);
        auto plain =
            Plain::backward(floats(dy), floats(x), floats(gain), static_cast<float>(offset));
        auto want = Exact::backward(doubles(dy), doubles(x), doubles(gain), offset);
        for (std::size_t c = 0; c < want.dgain.size(); ++c) {
            plain.dgain[c] += 1, want.dgain[c] += 1, plain.dbias[c] += 1, want.dbias[c] += 1;
        }
        const std::vector<float> before = floats(start);
        for (std::size_t i = 0; accumulate && i < want.dx.size(); ++i) {
            plain.dx[i] += before[i], want.dx[i] += before[i];
        }
        EXPECT_TRUE(within_error_of_plain(dx, tensor_of(plain.dx, shape, dtype), want.dx, 3.0));
        EXPECT_TRUE(
            within_error_of_plain(dgain, tensor_of(plain.dgain, {width}, kFp32), want.dgain, 3.0));
        if (!has_bias) return;
        EXPECT_TRUE(
            within_error_of_plain(dbias, tensor_of(plain.dbias, {width}, kFp32), want.dbias, 3.0));
    }
};
INSTANTIATE_TEST_SUITE_P(,
                         LayerNormTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(LayerNormTest, MatchesReference) {
    for (const Isa isa : kAllIsas) {
        if (GetParam() != Device::kCpu && isa != kAllIsas[0]) continue;
        limit_isa(isa);
        for (const DType dtype : {kFp32, kBf16}) {
            for (const std::int64_t width : {3, 16, 31, 257}) {
                for (const testing::DataKind kind : testing::kAllDataKinds) {
                    SCOPED_TRACE(concat(name_of(isa), " ", name_of(dtype), " width ", width, " ",
                                        testing::name_of(kind)));
                    const Tensor x = testing::make_data(kind, {2, 17, width}, dtype, 1);
                    check(x, kFp32, true, false);
                    check(x, dtype, false, true);
                }
            }
        }
    }
    limit_isa(Isa::kAvx512);
}

// Rows of several warps, of more than fit in registers, and a last chunk that is not whole; and so many rows
// that several groups add up to a gradient.
TEST_P(LayerNormTest, OfWideRowsAndOfManyRows) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const Shape& shape :
             {Shape{3, 1032}, Shape{2, 4104}, Shape{1, 8401}, Shape{150, 24}}) {
            SCOPED_TRACE(concat(name_of(dtype), " ", to_string(shape)));
            check(gaussian(shape, dtype, 1), kFp32, true, shape[1] == 4104);
        }
    }
}

TEST_P(LayerNormTest, OfExtremeRows) {
    for (const std::int64_t width : {48, 1032}) {
        // Alternating about a mean: whatever the scale, +1 and -1; rows of equal numbers give the bias.
        const float kHuge = 3e38f;
        const std::vector<std::pair<float, float>> rows = {{kHuge, -kHuge},   {kHuge, 1e38f},
                                                           {1e-30f, -1e-30f}, {2.0f, 1.0f},
                                                           {kHuge, kHuge},    {0.0f, 0.0f}};
        const auto count = static_cast<std::int64_t>(rows.size());
        const Tensor x = Tensor::uninitialized({count + 1, width}, kFp32);
        std::vector<double> want;
        for (const auto& [even, odd] : rows) {
            for (std::int64_t c = 0; c < width; ++c) {
                x.data<float>()[want.size()] = c % 2 == 0 ? even : odd;
                want.push_back(0.5 + (even == odd ? 0.0 : c % 2 == 0 ? 2.0 : -2.0));
            }
        }
        x.slice(0, count, count + 1).fill(1.0f);
        x.slice(0, count, count + 1).slice(1, 7, 8).fill(NAN);
        want.insert(want.end(), static_cast<std::size_t>(width), NAN);
        const Tensor gain = there(Tensor::full({width}, 2.0f, kFp32));
        const Tensor bias = there(Tensor::full({width}, 0.5f, kFp32));
        const Tensor y = there(poisoned(x.shape(), kFp32));
        const Tensor statistics = there(poisoned({2, count + 1}, kFp32));
        layer_norm_forward(there(x), gain, bias, 0.0, y, statistics);
        EXPECT_TRUE(testing::near(y, want, 1e-5, 0.0)) << width;
        // Gradients exist where the row is finite; those of the huge ones are as small as rows are large.
        const Tensor dx = there(poisoned({count, width}, kFp32));
        const Tensor dgain = there(Tensor::zeros({width}, kFp32));
        const Tensor first = there(x.slice(0, 0, count).contiguous());
        const Tensor first_statistics = there(poisoned({2, count}, kFp32));
        layer_norm_forward(first, gain, bias, 0.0, there(poisoned({count, width}, kFp32)),
                           first_statistics);
        layer_norm_backward(there(gaussian({count, width}, kFp32, 1)), first, gain,
                            first_statistics, false, dx, dgain, {});
        for (const double value : to_doubles(dx)) EXPECT_TRUE(std::isfinite(value)) << value;
        for (const double value : to_doubles(dgain)) EXPECT_TRUE(std::isfinite(value)) << value;
    }
}

TEST_P(LayerNormTest, WorksInPlace) {
    for (const std::int64_t width : {40, 1100}) {
        const Tensor x = there(gaussian({3, width}, kFp32, 1));
        const Tensor dy = there(gaussian({3, width}, kFp32, 2));
        const Tensor gain = there(gaussian({width}, kFp32, 3));
        const Tensor statistics = there(poisoned({2, 3}, kFp32));
        const Tensor y = there(poisoned({3, width}, kFp32)),
                     dx = there(poisoned({3, width}, kFp32));
        const Tensor dgain = there(Tensor::zeros({width}, kFp32));
        layer_norm_forward(x, gain, gain, 1e-6, y, statistics);
        layer_norm_backward(dy, x, gain, statistics, false, dx, dgain, dgain.clone());
        layer_norm_backward(dy, x, gain, statistics, false, dy, dgain, {});
        EXPECT_TRUE(testing::same_bits(dy, dx));
        layer_norm_forward(x, gain, gain, 1e-6, x, statistics);
        EXPECT_TRUE(testing::same_bits(x, y));
    }
}

// An offset is as if the gain were larger, and the gradients are the same.
TEST_P(LayerNormTest, OffsetAddsToTheGainOfRmsNormToo) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t width : {31, 64}) {
            const Tensor x = there(gaussian({5, width}, dtype, 1));
            const Tensor dy = there(gaussian({5, width}, dtype, 2));
            const Tensor stored = gaussian({width}, kFp32, 3), whole = stored.clone();
            for (std::int64_t c = 0; c < width; ++c) whole.data<float>()[c] += 1.0f;
            std::vector<Tensor> results[2];
            for (const bool offset : {false, true}) {
                const Tensor gain = there(offset ? stored : whole);
                const Tensor y = there(poisoned({5, width}, dtype)),
                             rstd = there(poisoned({5}, kFp32));
                const Tensor dx = there(poisoned({5, width}, dtype));
                const Tensor dgain = there(Tensor::zeros({width}, kFp32));
                rms_norm_forward(x, gain, 1e-6, y, rstd, offset ? 1.0 : 0.0);
                rms_norm_backward(dy, x, gain, rstd, false, dx, dgain, offset ? 1.0 : 0.0);
                results[offset] = {y, rstd, dx, dgain};
            }
            for (std::size_t i = 0; i < 4; ++i) {
                EXPECT_TRUE(testing::same_bits(results[1][i], results[0][i])) << i;
            }
        }
    }
}

TEST(LayerNormCheckTest, RejectsWrongShapesAndTypes) {
    const Tensor x = Tensor::zeros({3, 8}, kFp32), gain = Tensor::zeros({8}, kFp32);
    const Tensor statistics = Tensor::zeros({2, 3}, kFp32), half = Tensor::zeros({4}, kFp32);
    EXPECT_THROW(layer_norm_forward(x, half, gain, 1e-6, x, statistics), Error);
    EXPECT_THROW(layer_norm_forward(x, gain, half, 1e-6, x, statistics), Error);
    EXPECT_THROW(layer_norm_forward(x, gain, gain, -1.0, x, statistics), Error);
    EXPECT_THROW(layer_norm_forward(x, gain, gain, 1e-6, x, Tensor::zeros({3}, kFp32)), Error);
    EXPECT_THROW(layer_norm_forward(x, gain, gain, 1e-6, x, statistics, INFINITY), Error);
    EXPECT_THROW(layer_norm_backward(x, x, gain, statistics, false, x, gain, half), Error);
    EXPECT_THROW(layer_norm_backward(x, x, gain, statistics, false, x, half, gain), Error);
}

}  // namespace
}  // namespace evenkeel
