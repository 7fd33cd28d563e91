// What each norm of queries and keys is, on every device: values worked out by hand, lengths, means,
// and what does not change.
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "attention/reference_attention.h"
#include "attention/token_dots.h"
#include "tests/attention/qk_norm_rope_device.h"
#include "tests/support/compare.h"

namespace evenkeel::testing {
namespace {

constexpr DType kFp32 = DType::kFloat32;

std::vector<DeviceType> all_types() {
    std::vector<DeviceType> types = device_types();
    types.push_back({Device::kCpu, kFp32});
    return types;
}

struct Result {
    Tensor y, rstd, dx;
};

class QkNormKinds : public ::testing::TestWithParam<DeviceType> {
  protected:
    Device device() const { return GetParam().device; }
    DType dtype() const { return GetParam().dtype; }
    double roundoff() const {
        return dtype() == kFp32 ? 0x1p-22 : dtype() == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    }
    // Without rotation and gain; dx of dy.
    Result run(const Tensor& x, QkNormKind norm, double eps, const Tensor& dy = {}) const {
        QkNormRopeOptions options;
        options.norm = norm;
        options.eps = eps;
        RopeConfig config;
        config.rotary_fraction = 0.0;
        const RopeTable table = make_rope_table(config, x.size(3), 0, x.size(1));
        const Tensor there = on(device(), x);
        const Tensor y = on(device(), poisoned(x.shape(), dtype()));
        const Tensor rstd = on(device(), poisoned({x.size(0), x.size(1), x.size(2)}, kFp32));
        qk_norm_rope_forward(there, {}, table, {}, options, y, rstd);
        if (!dy.defined()) return {on_cpu(y), on_cpu(rstd), {}};
        const Tensor dx = on(device(), poisoned(x.shape(), dtype()));
        qk_norm_rope_backward(on(device(), dy), there, {}, rstd, table, {}, options, dx, {});
        return {on_cpu(y), on_cpu(rstd), on_cpu(dx)};
    }
    Tensor rows(const std::vector<double>& values) const {
        return tensor_of(values, {1, 1, 1, static_cast<std::int64_t>(values.size())}, dtype());
    }
};

INSTANTIATE_TEST_SUITE_P(, QkNormKinds, ::testing::ValuesIn(all_types()), device_type_name);

// The row 3, 4, 0, 0 ...: length 5.
TEST_P(QkNormKinds, AgreeWithValuesWorkedOutByHand) {
    std::vector<double> x(64), want(64);
    x[0] = 3.0, x[1] = 4.0;
    const auto expect = [&](QkNormKind norm, double eps, double rstd) {
        SCOPED_TRACE(concat(name_of(norm), ", eps ", eps));
        const Result got = run(rows(x), norm, eps);
        EXPECT_TRUE(near(got.rstd, {rstd}, 4e-7, 0.0));
        EXPECT_TRUE(near(got.y, want, roundoff(), 0.0));
    };
    want[0] = 0.6, want[1] = 0.8;
    expect(QkNormKind::kL2, 0.0, 1.0 / 5.0);
    want[0] = 0.5, want[1] = 4.0 / 6.0;
    expect(QkNormKind::kL2, 11.0, 1.0 / 6.0);  // inside the root, beside the sum
    want[0] = 4.8, want[1] = 6.4;
    expect(QkNormKind::kRms, 0.0, 8.0 / 5.0);
    // Half the channels 1, half 7: mean 4, deviation 3.
    for (int i = 0; i < 64; ++i) x[i] = i < 32 ? 1.0 : 7.0, want[i] = i < 32 ? -1.0 : 1.0;
    expect(QkNormKind::kLayerNorm, 0.0, 1.0 / 3.0);
    for (int i = 0; i < 64; ++i) want[i] = i < 32 ? -0.75 : 0.75;
    expect(QkNormKind::kLayerNorm, 7.0, 1.0 / 4.0);
}

TEST_P(QkNormKinds, LayerNormOfOneValueIsZero) {
    for (const std::int64_t dim : {64, 96, 128, 256}) {
        for (const double value : {0.1, -3.0, 1000.3, 1.0 / 3.0}) {
            const Tensor x = Tensor::full({1, 2, 3, dim}, static_cast<float>(value), kFp32);
            const Result got = run(x.to(dtype()), QkNormKind::kLayerNorm, 1e-6);
            EXPECT_TRUE(near(got.y, std::vector<double>(static_cast<std::size_t>(6 * dim)), 0.0,
                             1e-7 * std::abs(value)))
                << "width " << dim << ", value " << value;
        }
    }
}

// By another formula: the mean taken off in double, then the RMS norm.
TEST_P(QkNormKinds, LayerNormIsTheRmsNormOfTheCentredRow) {
    const Tensor x = gaussian({2, 5, 3, 96}, kFp32, 1);
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] += 8.0f;
    const Tensor rounded = x.to(dtype());
    std::vector<double> centred = to_doubles(rounded);
    for (std::size_t row = 0; row < centred.size(); row += 96) {
        const double mean =
            std::accumulate(centred.begin() + row, centred.begin() + row + 96, 0.0) / 96.0;
        for (std::size_t i = row; i < row + 96; ++i) centred[i] -= mean;
    }
    ReferenceQkNormRope rms;
    rms.kind = QkNormKind::kRms;
    EXPECT_TRUE(near(run(rounded, QkNormKind::kLayerNorm, 1e-6).y,
                     reference_qk_norm_rope(centred, 2, 5, 3, 96, rms), 1.01 * roundoff(), 1e-6));
}

TEST_P(QkNormKinds, EveryRowComesOutAtItsLength) {
    for (const std::int64_t dim : {64, 96, 128, 256}) {
        const Tensor x = gaussian({1, 3, 5, dim}, dtype(), 1);
        for (const QkNormKind norm : kNorms) {
            const std::vector<double> y = to_doubles(run(x, norm, 0.0).y);
            const double want = norm == QkNormKind::kL2 ? 1.0 : static_cast<double>(dim);
            for (std::size_t row = 0; row < 15; ++row) {
                double sum = 0.0, squares = 0.0;
                for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
                    sum += y[i], squares += y[i] * y[i];
                }
                EXPECT_NEAR(squares / want, 1.0, 2.0 * roundoff()) << name_of(norm);
                if (norm == QkNormKind::kLayerNorm) {
                    EXPECT_NEAR(sum / want, 0.0, roundoff()) << "row " << row;
                }
            }
        }
    }
}

// Powers of two change no digit of y; a factor of 7 only what rounding x loses.
TEST_P(QkNormKinds, ScaleOfTheInputDoesNotMatter) {
    const Tensor x = gaussian({2, 4, 3, 64}, dtype(), 1).to(kFp32), larger = x.clone();
    for (const float factor : {8.0f, 7.0f}) {
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            larger.data<float>()[i] = factor * x.data<float>()[i];
        }
        for (const QkNormKind norm : kNorms) {
            const Tensor want = run(x.to(dtype()), norm, 0.0).y;
            const Tensor got = run(larger.to(dtype()), norm, 0.0).y;
            EXPECT_TRUE(near(got, want, 4.0 * roundoff(), factor == 8.0f ? 1e-6 : roundoff()))
                << name_of(norm) << " times " << factor;
        }
    }
}

// y does not change along x, nor, for LayerNorm, along the row of ones: dx has no part there.
TEST_P(QkNormKinds, GradientsHaveNoPartAlongWhatDoesNotMatter) {
    const Tensor x = gaussian({1, 4, 3, 128}, dtype(), 1),
                 dy = gaussian({1, 4, 3, 128}, dtype(), 2);
    for (const QkNormKind norm : kNorms) {
        const std::vector<double> dx = to_doubles(run(x, norm, 0.0, dy).dx), at = to_doubles(x);
        for (std::size_t row = 0; row < 12; ++row) {
            double radial = 0.0, sum = 0.0, xx = 0.0, dd = 0.0;
            for (std::size_t i = row * 128; i < (row + 1) * 128; ++i) {
                radial += dx[i] * at[i], sum += dx[i], xx += at[i] * at[i], dd += dx[i] * dx[i];
            }
            EXPECT_LT(std::abs(radial) / std::sqrt(xx * dd), roundoff()) << name_of(norm);
            if (norm != QkNormKind::kLayerNorm) continue;
            EXPECT_LT(std::abs(sum) / std::sqrt(128.0 * dd), roundoff()) << "row " << row;
        }
    }
}

// Differences between these channels do not fit fp32, nor does their sum.
TEST_P(QkNormKinds, LayerNormOfRowsAtTheEndOfTheRangeKeepsItsDirection) {
    const double large = dtype() == DType::kFloat16 ? 6e4 : 3e38;
    for (int kind = 0; kind < 3; ++kind) {
        std::vector<double> x(64), want(64), dy(64);
        for (int i = 0; i < 64; ++i) {
            const double sign = i % 2 == 0 ? 1.0 : -1.0;
            // All but one on one side; both halves; all the same.
            x[i] = kind == 0 ? (i == 5 ? -large : large) : kind == 1 ? sign * large : large;
            want[i] = kind == 0   ? (i == 5 ? -std::sqrt(63.0) : 1.0 / std::sqrt(63.0))
                      : kind == 1 ? sign
                                  : 0.0;
            dy[i] = i % 3;
        }
        const Result got = run(rows(x), QkNormKind::kLayerNorm, 1e-6, rows(dy));
        EXPECT_TRUE(near(got.y, want, 2.0 * roundoff(), 0.0)) << "kind " << kind;
        for (const double value : to_doubles(got.dx)) EXPECT_TRUE(std::isfinite(value)) << kind;
    }
}

// One statistic for all heads of a token, found from token_dots; its gradient from the dots of dy and
// y. Against the reference that normalises whole tokens.
TEST_P(QkNormKinds, StatisticsOfWholeTokensComeFromTheCaller) {
    const std::int64_t B = 2, T = 6, N = 3;
    const double eps = 1e-6;
    for (const std::int64_t dim : {64, 96}) {
        const Shape shape{B, T, N, dim};
        RopeConfig config;
        config.rotary_fraction = dim == 64 ? 0.3125 : 1.0;
        const RopeTable table = on(device(), make_rope_table(config, dim, 0, T));
        const Tensor x = gaussian(shape, dtype(), 1), dy = gaussian(shape, dtype(), 2);
        const Tensor gain = gaussian({N, dim}, kFp32, 3);
        const Tensor x_there = on(device(), x), dy_there = on(device(), dy);
        const Tensor gain_there = on(device(), gain);
        const auto scaled = [&](const Tensor& dots, auto&& f) {
            const Tensor values = on_cpu(dots).clone();
            for (std::int64_t i = 0; i < values.numel(); ++i) {
                values.data<float>()[i] = static_cast<float>(
                    f(static_cast<double>(values.data<float>()[i]) / static_cast<double>(N * dim)));
            }
            return on(device(), values);
        };
        const Tensor dots = on(device(), poisoned({B, T}, kFp32));
        token_dots(x_there, x_there, dots);
        const Tensor rstd = scaled(dots, [&](double mean) { return 1.0 / std::sqrt(mean + eps); });
        const Tensor kept = on_cpu(rstd).clone();
        QkNormRopeOptions options;
        options.token_statistic = true;
        const Tensor y = on(device(), poisoned(shape, dtype()));
        qk_norm_rope_forward(x_there, gain_there, table, {}, options, y, rstd);
        EXPECT_TRUE(same_bits(on_cpu(rstd), kept)) << "rstd is an input";

        ReferenceQkNormRope o;
        o.kind = QkNormKind::kRms;
        o.full_width = true;
        o.eps = eps;
        o.gain = to_doubles(gain);
        o.frequencies = rope_frequencies(config, dim);
        const std::vector<double> want = reference_qk_norm_rope(to_doubles(x), B, T, N, dim, o);
        EXPECT_TRUE(near(on_cpu(y), want, 1.1 * roundoff(), 4e-6));

        token_dots(dy_there, y, dots);
        const Tensor mean = scaled(dots, [](double value) { return value; });
        const Tensor dx = on(device(), poisoned(shape, dtype()));
        const Tensor dgain = on(device(), Tensor::zeros({N, dim}, kFp32));
        const QkNormRopeGradientPart part{dy_there, x_there, gain_there, rstd, dx, dgain, mean};
        qk_norm_rope_backward({&part, 1}, table, {}, options);
        const auto gradients =
            reference_qk_norm_rope_backward(to_doubles(dy), to_doubles(x), B, T, N, dim, o);
        // y has been rounded, which moves mean by a fraction of an ulp of its terms.
        EXPECT_TRUE(near(on_cpu(dx), gradients.dx, 1.1 * roundoff(), 0.25 * roundoff() + 4e-6));
        EXPECT_TRUE(near(on_cpu(dgain), gradients.dgain, 1e-5, 1e-5));
    }
}

TEST_P(QkNormKinds, WhatDoesNotFitTogetherIsAnError) {
    const auto message = [](const auto& call) -> std::string {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    const auto expect = [&](const std::string& want, const auto& call) {
        const std::string got = message(call);
        EXPECT_NE(got.find(want), std::string::npos) << "got " << got << ", want " << want;
    };
    const Shape shape{2, 3, 4, 64};
    const Tensor x = on(device(), gaussian(shape, dtype(), 1));
    const Tensor y = on(device(), poisoned(shape, dtype()));
    const Tensor of_heads = on(device(), Tensor::full({2, 3, 4}, 1.0f, kFp32));
    const Tensor of_tokens = on(device(), Tensor::full({2, 3}, 1.0f, kFp32));
    const RopeTable table = on(device(), make_rope_table({}, 64, 0, 3));
    QkNormRopeOptions whole, heads;
    whole.token_statistic = true;
    expect("rstd: got shape [2, 3, 4], want [2, 3]",
           [&] { qk_norm_rope_forward(x, {}, table, {}, whole, y, of_heads); });
    expect("rstd: got shape [2, 3], want [2, 3, 4]",
           [&] { qk_norm_rope_forward(x, {}, table, {}, heads, y, of_tokens); });
    const auto backward = [&](const QkNormRopeOptions& options, const Tensor& rstd,
                              const Tensor& mean) {
        const QkNormRopeGradientPart part{y, x, {}, rstd, y, {}, mean};
        qk_norm_rope_backward({&part, 1}, table, {}, options);
    };
    expect("mean: got none for token_statistic", [&] { backward(whole, of_tokens, {}); });
    expect("mean: got one without token_statistic", [&] { backward(heads, of_heads, of_tokens); });
    expect("mean: got shape [2, 3, 4], want [2, 3]", [&] { backward(whole, of_tokens, of_heads); });
    for (const QkNormKind norm : {QkNormKind::kNone, QkNormKind::kL2, QkNormKind::kLayerNorm}) {
        whole.norm = norm;
        expect("token_statistic: got one for a norm that is not rms, want rms",
               [&] { qk_norm_rope_forward(x, {}, table, {}, whole, y, of_tokens); });
    }
}

}  // namespace
}  // namespace evenkeel::testing
