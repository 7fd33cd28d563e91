// Norms that come in by and by, on every device: y = R( gain x rstd^lambda ).
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "framework/isa.h"
#include "tests/attention/qk_norm_rope_device.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

constexpr DType kFp32 = DType::kFloat32;

std::vector<DeviceType> all_types() {
    std::vector<DeviceType> types = device_types();
    types.push_back({Device::kCpu, kFp32});
    return types;
}

Tensor scalar(double value) { return Tensor::full({1}, static_cast<float>(value), kFp32); }

struct Rotation {
    std::int64_t dim, rotary_dim;
    RopeLayout layout;
};
// Of the kernels on CUDA: halves, whole and in part; neighbours; neither by 8.
constexpr Rotation kRotations[] = {{64, 64, RopeLayout::kHalfSplit},
                                   {128, 96, RopeLayout::kHalfSplit},
                                   {256, 256, RopeLayout::kInterleaved},
                                   {96, 50, RopeLayout::kInterleaved}};

class QkNormAnneal : public ::testing::TestWithParam<DeviceType> {
  protected:
    void TearDown() override { limit_isa(Isa::kAvx512); }
    Device device() const { return GetParam().device; }
    DType dtype() const { return GetParam().dtype; }
    JointCase make_case(const Rotation& rotation, GainKind gain) const {
        JointCase c;
        c.tokens = 9;
        c.dim = rotation.dim;
        c.heads[0] = 3, c.heads[1] = 2;
        c.rope.layout = rotation.layout;
        c.rope.rotary_fraction =
            static_cast<double>(rotation.rotary_dim) / static_cast<double>(rotation.dim);
        for (int i = 0; i < 2; ++i) c.gain[i] = make_gain(gain, c.heads[i], c.dim, 3 + i);
        return c;
    }
    JointResult run(const JointCase& c, const Tensor& x, const Tensor& dy) const {
        return run_joint(device(), c, x, dy);
    }
    // One row of one head without rotation and gain.
    JointCase row_case(double eps, double lambda) const {
        JointCase c;
        c.heads[1] = 0;
        c.rope.rotary_fraction = 0.0;
        c.options.eps = eps;
        c.options.lambda = scalar(lambda);
        return c;
    }
    // The row, and a head that is nobody's.
    Tensor packed_row(std::vector<double> values) const {
        values.resize(128);
        return tensor_of(values, {1, 1, 128}, dtype());
    }
    double roundoff() const {
        return dtype() == kFp32 ? 0x1p-21 : dtype() == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    }
};
INSTANTIATE_TEST_SUITE_P(, QkNormAnneal, ::testing::ValuesIn(all_types()), device_type_name);

TEST_P(QkNormAnneal, MatchesTheReferenceOnAllData) {
    for (const Rotation& rotation : kRotations) {
        for (const DataKind kind : kAllDataKinds) {
            const double lambda = kind == DataKind::kGaussian ? 0.9 : 0.3;
            SCOPED_TRACE(
                concat("width ", rotation.dim, ", lambda ", lambda, ", ", testing::name_of(kind)));
            JointCase c = make_case(rotation, GainKind::kPerHead);
            c.options.lambda = scalar(lambda);
            c.options.eps = 1e-5;
            const Tensor x = packed_data(c, kind, dtype(), 1);
            const Tensor dy = packed_data(c, kind, dtype(), 2);
            expect_right(c, x, dy, run(c, x, dy));
        }
    }
}

TEST_P(QkNormAnneal, EveryInstructionSetMatchesTheReference) {
    if (device() != Device::kCpu) GTEST_SKIP() << "one kernel for all";
    for (const Isa isa : kAllIsas) {
        limit_isa(isa);
        for (const std::int64_t dim : {32, 80, 192}) {
            SCOPED_TRACE(concat(evenkeel::name_of(isa), ", width ", dim));
            JointCase c = make_case({dim, dim, RopeLayout::kHalfSplit}, GainKind::kShared);
            c.options.lambda = scalar(0.4);
            const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
            const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
            expect_right(c, x, dy, run(c, x, dy));
        }
    }
}

// Rows of 3, 4 and zeros: mean square 25/64; (8/5)^(1/2).
TEST_P(QkNormAnneal, HalfwayIsTheRootOfTheFactor) {
    const Tensor x = packed_row({3.0, 4.0}), dy = packed_row({1.0, 0.0, 2.0});
    const JointResult got = run(row_case(0.0, 0.5), x, dy);
    const double factor = std::sqrt(1.6);
    std::vector<double> y(64), dx(64);
    y[0] = 3.0 * factor, y[1] = 4.0 * factor;
    EXPECT_TRUE(near(got.y.slice(2, 0, 64), y, roundoff(), 0.0));
    EXPECT_TRUE(near(got.rstd[0], {1.6}, 4e-7, 0.0)) << "kept as it is";
    // mean(dy u) = 4.8 / 64 = 0.075; half of it comes off along u = 4.8, 6.4.
    dx[0] = factor * (1.0 - 0.5 * 4.8 * 0.075);
    dx[1] = factor * (0.0 - 0.5 * 6.4 * 0.075);
    dx[2] = factor * 2.0;
    EXPECT_TRUE(near(got.dx.slice(2, 0, 64), dx, roundoff(), 0.0));
}

// Zeros of either sign, an infinity and a NaN included.
TEST_P(QkNormAnneal, LambdaOfZeroHasTheBitsOfNoNorm) {
    for (const Rotation& rotation : kRotations) {
        for (const bool with_gain : {false, true}) {
            SCOPED_TRACE(concat("width ", rotation.dim, with_gain ? ", gains of 1" : ""));
            JointCase c = make_case(rotation, GainKind::kNone);
            Tensor x = packed_data(c, DataKind::kMassiveActivations, dtype(), 1).to(kFp32).clone();
            Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2).to(kFp32).clone();
            for (std::int64_t i = 0; i < c.width(); ++i) {
                x.data<float>()[i] = i % 2 == 0 ? 0.0f : -0.0f;
                dy.data<float>()[c.width() + i] = i % 3 == 0 ? 0.0f : -0.0f;
            }
            x.data<float>()[2 * c.width() + 5] = std::numeric_limits<float>::infinity();
            x.data<float>()[3 * c.width() + 5] = std::numeric_limits<float>::quiet_NaN();
            x = x.to(dtype()), dy = dy.to(dtype());
            c.options.norm = QkNormKind::kNone;
            const JointResult want = run(c, x, dy);
            c.options.norm = QkNormKind::kRms;
            c.options.lambda = scalar(0.0);
            for (const double eps : {0.0, 1e-6}) {
                c.options.eps = eps;
                for (int i = 0; with_gain && i < 2; ++i) {
                    c.gain[i] = Tensor::full({c.heads[i], c.dim}, 1.0f, kFp32);
                }
                const JointResult got = run(c, x, dy);
                EXPECT_TRUE(same_bits(got.y, want.y)) << "y, eps " << eps;
                EXPECT_TRUE(same_bits(got.dx, want.dx)) << "dx, eps " << eps;
            }
        }
    }
}

TEST_P(QkNormAnneal, LambdaOfOneHasTheBitsOfTheWholeNorm) {
    for (const Rotation& rotation : kRotations) {
        for (const GainKind gain : {GainKind::kNone, GainKind::kShared, GainKind::kPerHead}) {
            SCOPED_TRACE(concat("width ", rotation.dim));
            JointCase c = make_case(rotation, gain);
            const Tensor x = packed_data(c, DataKind::kMassiveActivations, dtype(), 1);
            const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
            const JointResult want = run(c, x, dy);
            c.options.lambda = scalar(1.0);
            const JointResult got = run(c, x, dy);
            EXPECT_TRUE(same_bits(got.y, want.y));
            EXPECT_TRUE(same_bits(got.dx, want.dx));
            for (int i = 0; i < 2; ++i) {
                EXPECT_TRUE(same_bits(got.rstd[i], want.rstd[i]));
                if (gain != GainKind::kNone) {
                    EXPECT_TRUE(same_bits(got.dgain[i], want.dgain[i]));
                }
            }
        }
    }
}

// All channels v: the root is v, y is v^(1 - lambda), however the squares fare in fp32.
TEST_P(QkNormAnneal, RowsWhoseSquaresDoNotFitAreRight) {
    const bool half = dtype() == DType::kFloat16;
    for (const double exponent : half ? std::vector{-20.0, 14.0} : std::vector{-100.0, 100.0}) {
        for (const double lambda : {0.25, 0.75}) {
            SCOPED_TRACE(concat("2^", exponent, ", lambda ", lambda));
            std::vector<double> x(64, std::exp2(exponent)), dy(64);
            dy[0] = 1.0;
            const JointResult got = run(row_case(0.0, lambda), packed_row(x), packed_row(dy));
            std::fill(x.begin(), x.end(), std::exp2(exponent * (1.0 - lambda)));
            EXPECT_TRUE(near(got.y.slice(2, 0, 64), x, 2.0 * roundoff(), 0.0));
            const double factor = std::exp2(-exponent * lambda);
            std::vector<double> dx(64, -factor * lambda / 64.0);
            dx[0] += factor;
            const double least = half ? 0x1p-24 : 0.0;
            EXPECT_TRUE(near(got.dx.slice(2, 0, 64), dx, 4.0 * roundoff(), least));
        }
    }
}

// dx . x = (1 - lambda) y . dy where eps does not count: what is left of the radial part.
TEST_P(QkNormAnneal, TheRadialPartOfTheGradientFadesWithLambda) {
    if (dtype() != kFp32) GTEST_SKIP() << "rounding of dx hides it";
    JointCase c = make_case({64, 64, RopeLayout::kHalfSplit}, GainKind::kNone);
    c.options.eps = 0.0;
    const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
    const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
    for (const double lambda : {0.0, 0.4, 1.0}) {
        c.options.lambda = scalar(lambda);
        const JointResult got = run(c, x, dy);
        const auto dot = [](const Tensor& a, const Tensor& b, std::int64_t head) {
            double sum = 0.0;
            for (std::int64_t i = head * 64; i < (head + 1) * 64; ++i) {
                sum += static_cast<double>(a.data<float>()[i]) * b.data<float>()[i];
            }
            return sum;
        };
        for (std::int64_t head = 0; head < 5; ++head) {
            EXPECT_NEAR(dot(got.dx, x, head), (1.0 - lambda) * dot(got.y, dy, head), 1e-4)
                << "head " << head << ", lambda " << lambda;
        }
    }
}

TEST_P(QkNormAnneal, WhatDoesNotFitIsAnError) {
    const Tensor x = on(device(), gaussian({1, 2, 3, 64}, dtype(), 1));
    const Tensor y = on(device(), poisoned({1, 2, 3, 64}, dtype()));
    const Tensor rstd = on(device(), Tensor::full({1, 2, 3}, 1.0f, kFp32));
    const RopeTable table = on(device(), make_rope_table({}, 64, 0, 2));
    const auto expect = [&](const std::string& want, const QkNormRopeOptions& options) {
        const Tensor statistic =
            options.token_statistic ? on(device(), Tensor::full({1, 2}, 1.0f, kFp32)) : rstd;
        try {
            qk_norm_rope_forward(x, {}, table, {}, options, y, statistic);
            ADD_FAILURE() << "no error, want " << want;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
        }
    };
    QkNormRopeOptions options;
    options.lambda = on(device(), Tensor::full({2}, 0.5f, kFp32));
    expect("lambda: got shape [2], want [1]", options);
    options.lambda = on(device(), scalar(0.5).to(DType::kBFloat16));
    expect("lambda: got bf16, want fp32", options);
    options.lambda = on(device(), scalar(0.5));
    options.token_statistic = true;
    expect("lambda: got one where the norm is not rms", options);
    options.token_statistic = false;
    options.norm = QkNormKind::kL2;
    expect("lambda: got one where the norm is not rms", options);
    options.norm = QkNormKind::kRms;
    if (device() == Device::kCuda) {
        options.lambda = scalar(0.5);
        expect("lambda: got cpu, want cuda", options);
        return;
    }
    options.lambda = scalar(1.5);
    expect("lambda: got 1.5, want 0 to 1", options);
    options.lambda = scalar(std::nan(""));
    expect("want 0 to 1", options);
}

// The reference's own gradients, against central differences of <dy, y> in double.
TEST(QkNormAnnealReference, GradientsMatchFiniteDifferences) {
    NormRopeCase c;
    c.tokens = 2, c.heads = 2, c.dim = 16;
    c.eps = 0.01;
    const std::vector<double> dy = to_doubles(gaussian({64}, kFp32, 1));
    std::vector<double> x = to_doubles(gaussian({64}, kFp32, 2));
    c.gain = to_doubles(gaussian({32}, kFp32, 3));
    for (const double lambda : {0.0, 0.3, 1.0}) {
        c.lambda = lambda;
        const NormRopeGradients got = norm_rope_gradients(c, dy, x);
        const auto loss = [&] {
            const std::vector<double> y = norm_rope(c, x);
            double sum = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
            return sum;
        };
        const auto slope = [&](double& value) {
            constexpr double kStep = 1e-5;
            const double kept = value;
            value = kept + kStep;
            const double above = loss();
            value = kept - kStep;
            const double below = loss();
            value = kept;
            return (above - below) / (2.0 * kStep);
        };
        for (std::size_t i = 0; i < x.size(); ++i) {
            EXPECT_NEAR(got.dx[i], slope(x[i]), 1e-8) << "x " << i << ", lambda " << lambda;
        }
        for (std::size_t i = 0; i < c.gain.size(); ++i) {
            EXPECT_NEAR(got.dgain[i], slope(c.gain[i]), 1e-8)
                << "gain " << i << ", lambda " << lambda;
        }
    }
}

}  // namespace
}  // namespace evenkeel::testing
