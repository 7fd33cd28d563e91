#include "attention/qk_norm_rope.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention/cpu/qk_norm_rope.h"
#include "framework/isa.h"
#include "framework/rng.h"
#include "tests/attention/qk_norm_rope_reference.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::DataKind;
using testing::gaussian;
using testing::make_data;
using testing::near;
using testing::norm_rope;
using testing::norm_rope_gradients;
using testing::NormRopeCase;
using testing::packed_slice;
using testing::poisoned;
using testing::same_bits;
using testing::tensor_of;
using testing::to_doubles;
using testing::to_floats;
using testing::within_error_of_plain;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

double dot(const float* a, const float* b, std::int64_t n) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

// Normalises and rotates with a table that just fits.
Tensor run_forward(const Tensor& x,
                   const Tensor& gain,
                   const RopeConfig& config = {},
                   const QkNormRopeOptions& options = {},
                   std::int64_t first = 0) {
    const Tensor y = poisoned(x.shape(), x.dtype());
    const Tensor rstd = poisoned({x.size(0), x.size(1), x.size(2)}, kFp32);
    Tensor positions;
    if (first != 0) {
        positions = Tensor::uninitialized({x.size(0), x.size(1)}, DType::kInt32);
        for (std::int64_t i = 0; i < positions.numel(); ++i) {
            positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(first + i % x.size(1));
        }
    }
    const RopeTable table = make_rope_table(config, x.size(3), first, x.size(1));
    qk_norm_rope_forward(x, gain, table, positions, options, y, rstd);
    return y;
}

TEST(QkNormRopeTest, ReferenceGradientsMatchFiniteDifferences) {
    for (const QkNormKind norm : {QkNormKind::kRms, QkNormKind::kL2, QkNormKind::kLayerNorm}) {
        NormRopeCase c;
        c.tokens = 3, c.heads = 2, c.dim = 8;
        c.norm = norm;
        c.rope.layout = norm == QkNormKind::kL2 ? RopeLayout::kInterleaved : RopeLayout::kHalfSplit;
        c.rope.rotary_fraction = 0.5;
        c.rope.scaling = RopeConfig::Scaling::kYarn;
        c.rope.factor = 4.0;
        c.gain = to_doubles(gaussian({2, 8}, kFp32, 1));
        std::vector<double> x = to_doubles(gaussian({1, 3, 2, 8}, kFp32, 2));
        const std::vector<double> dy = to_doubles(gaussian({1, 3, 2, 8}, kFp32, 3));
        const auto loss = [&] {
            const std::vector<double> y = norm_rope(c, x);
            double sum = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
            return sum;
        };
        const auto difference = [&](double& value) {
            const double kept = value, step = 1e-5;
            value = kept + step;
            const double above = loss();
            value = kept - step;
            const double below = loss();
            value = kept;
            return (above - below) / (2.0 * step);
        };
        const auto got = norm_rope_gradients(c, dy, x);
        for (std::size_t i = 0; i < x.size(); ++i) {
            EXPECT_NEAR(got.dx[i], difference(x[i]), 1e-8) << "dx " << i;
        }
        for (std::size_t i = 0; i < c.gain.size(); ++i) {
            EXPECT_NEAR(got.dgain[i], difference(c.gain[i]), 1e-8) << "dgain " << i;
        }
    }
}

// The loss of one head depends on that head's gain, and the analytic gradient says how much.
TEST(QkNormRopeTest, GainOfEveryHeadIsUsed) {
    const Tensor x = gaussian({1, 5, 3, 32}, kFp32, 1), dy = gaussian({1, 5, 3, 32}, kFp32, 2);
    const Tensor gain = gaussian({3, 32}, kFp32, 3);
    const Tensor rstd = Tensor::zeros({1, 5, 3}, kFp32), y = poisoned(x.shape(), kFp32);
    const RopeTable table = make_rope_table({}, 32, 0, 5);
    const auto loss = [&] {
        qk_norm_rope_forward(x, gain, table, {}, {}, y, rstd);
        return dot(y.data<float>(), dy.data<float>(), y.numel());
    };
    loss();
    const Tensor dgain = Tensor::zeros({3, 32}, kFp32), dx = poisoned(x.shape(), kFp32);
    qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dx, dgain);
    for (const std::int64_t at : {0, 31, 32, 50, 64, 95}) {
        float& value = gain.data<float>()[at];
        const float kept = value;
        value = kept + 0.25f;
        const double above = loss();
        value = kept - 0.25f;
        const double below = loss();
        value = kept;
        EXPECT_NE(above, below) << "gain " << at;
        EXPECT_NEAR((above - below) / 0.5, dgain.data<float>()[at], 1e-4) << "gain " << at;
    }
}

TEST(QkNormRopeTest, StatisticIsTheMeanOfSquaresWithEpsInsideTheRoot) {
    QkNormRopeOptions options;
    for (const double eps : {0.0, 1e-6, 1e-5}) {
        for (const float scale : {1e-4f, 1e-3f, 1.0f, 1e4f}) {
            options.eps = eps;
            const Tensor x = Tensor::full({1, 1, 1, 64}, scale, kFp32);
            const Tensor y = run_forward(x, {}, {}, options);
            const double want = scale / std::sqrt(double(scale) * scale + eps);
            EXPECT_TRUE(near(y, std::vector<double>(64, want), 2e-7, 0.0))
                << "eps " << eps << ", scale " << scale;
        }
    }
}

TEST(QkNormRopeTest, ZeroRowsGiveZeroForwardAndBackward) {
    for (const double eps : {1e-6, 0.0}) {
        QkNormRopeOptions options;
        options.eps = eps;
        const Shape shape{1, 4, 2, 64};
        const Tensor x = Tensor::zeros(shape, kFp32), dy = gaussian(shape, kFp32, 1);
        const Tensor gain = gaussian({2, 64}, kFp32, 2), dgain = Tensor::zeros({2, 64}, kFp32);
        const Tensor y = poisoned(shape, kFp32), dx = poisoned(shape, kFp32);
        const Tensor rstd = poisoned({1, 4, 2}, kFp32);
        const RopeTable table = make_rope_table({}, 64, 0, 4);
        qk_norm_rope_forward(x, gain, table, {}, options, y, rstd);
        EXPECT_TRUE(near(y, std::vector<double>(y.numel(), 0.0), 0.0, 0.0));
        qk_norm_rope_backward(dy, x, gain, rstd, table, {}, options, dx, dgain);
        EXPECT_TRUE(near(dgain, std::vector<double>(dgain.numel(), 0.0), 0.0, 0.0));
        for (const double value : to_doubles(dx)) EXPECT_TRUE(std::isfinite(value)) << value;
    }
}

// Squares of these over- or underflow in fp32; the mean is then formed in double.
TEST(QkNormRopeTest, ExtremeRowsKeepTheirDirection) {
    QkNormRopeOptions options;
    options.eps = 0.0;
    NormRopeCase c;
    c.tokens = 3, c.heads = 2, c.eps = 0.0;
    const Shape shape{1, 3, 2, 64};
    const Tensor unit = gaussian(shape, kFp32, 1), dy = gaussian(shape, kFp32, 2);
    const RopeTable table = make_rope_table({}, 64, 0, 3);
    for (const float scale : {1e30f, 1e37f, 1e-18f, 1e-30f, 1e-37f}) {
        const Tensor x = unit.clone();
        for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= scale;
        const Tensor y = poisoned(shape, kFp32), dx = poisoned(shape, kFp32);
        const Tensor rstd = poisoned({1, 3, 2}, kFp32);
        qk_norm_rope_forward(x, {}, table, {}, options, y, rstd);
        EXPECT_TRUE(near(y, norm_rope(c, to_doubles(x)), 1e-6, 1e-6)) << scale;
        qk_norm_rope_backward(dy, x, {}, rstd, table, {}, options, dx, {});
        const auto want = norm_rope_gradients(c, to_doubles(dy), to_doubles(x));
        EXPECT_TRUE(near(dx, want.dx, 1e-5, 1e-6 / scale)) << scale;
    }
}

TEST(QkNormRopeTest, NonFiniteInputShowsInTheOutputOfItsHeadOnly) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            const Tensor x = gaussian({1, 2, 2, 64}, kFp32, 1);
            x.data<float>()[70] = bad;  // token 0, head 1
            const Tensor y = run_forward(x.to(dtype), {});
            const std::vector<double> values = to_doubles(y);
            int not_finite = 0;
            for (std::size_t i = 0; i < values.size(); ++i) {
                if (i / 64 == 1)
                    not_finite += !std::isfinite(values[i]);
                else
                    EXPECT_TRUE(std::isfinite(values[i])) << i;
            }
            EXPECT_GT(not_finite, 0);
        }
    }
}

// y . dy does not change with the length of x, so the gradient has no part along x but through eps.
TEST(QkNormRopeTest, GradientIsOrthogonalToTheInput) {
    QkNormRopeOptions options;
    options.eps = 0.0;
    const Shape shape{1, 9, 2, 128};
    const Tensor x = gaussian(shape, kFp32, 1), dy = gaussian(shape, kFp32, 2);
    const Tensor gain = gaussian({2, 128}, kFp32, 3), dgain = Tensor::zeros({2, 128}, kFp32);
    const Tensor y = poisoned(shape, kFp32), dx = poisoned(shape, kFp32);
    const Tensor rstd = poisoned({1, 9, 2}, kFp32);
    const RopeTable table = make_rope_table({}, 128, 0, 9);
    qk_norm_rope_forward(x, gain, table, {}, options, y, rstd);
    qk_norm_rope_backward(dy, x, gain, rstd, table, {}, options, dx, dgain);
    for (std::int64_t row = 0; row < 18; ++row) {
        const float* a = x.data<float>() + row * 128;
        const float* b = dx.data<float>() + row * 128;
        const double length = std::sqrt(dot(a, a, 128) * dot(b, b, 128));
        EXPECT_LT(std::abs(dot(a, b, 128)) / length, 1e-6) << "row " << row;
    }
}

TEST(QkNormRopeTest, ScaleOfTheInputDoesNotMatter) {
    const Tensor x = gaussian({2, 17, 3, 64}, kFp32, 1), gain = gaussian({3, 64}, kFp32, 2);
    const Tensor scaled = x.clone();
    for (std::int64_t i = 0; i < x.numel(); ++i) scaled.data<float>()[i] *= 7.0f;
    EXPECT_TRUE(near(run_forward(scaled, gain), run_forward(x, gain), 1e-5, 2e-6));
}

TEST(QkNormRopeTest, StatisticOfAHeadIsItsOwn) {
    for (const DType dtype : {kFp32, kBf16}) {
        const Tensor x = gaussian({1, 7, 4, 64}, kFp32, 1);
        const Tensor before = run_forward(x.to(dtype), {});
        for (std::int64_t t = 0; t < 7; ++t) {
            for (int c = 0; c < 64; ++c) x.data<float>()[t * 256 + c] *= 1000.0f;
        }
        const Tensor after = run_forward(x.to(dtype), {});
        EXPECT_TRUE(same_bits(after.slice(2, 1, 4), before.slice(2, 1, 4)));
    }
}

// Logits of one query and one key, 40 positions apart, wherever the pair stands.
std::vector<double> logits_along_the_sequence(const Tensor& gain, bool norm_first) {
    const Tensor q = gaussian({1, 1, 1, 64}, kFp32, 1), k = gaussian({1, 1, 1, 64}, kFp32, 2);
    QkNormRopeOptions rotate_only;
    rotate_only.norm = QkNormKind::kNone;
    RopeConfig no_rotation;
    no_rotation.rotary_fraction = 0.0;
    const auto apply = [&](const Tensor& x, std::int64_t position) {
        if (norm_first) return run_forward(x, gain, {}, {}, position);
        return run_forward(run_forward(x, {}, {}, rotate_only, position), gain, no_rotation);
    };
    std::vector<double> logits;
    for (const std::int64_t position : {1, 100, 1000}) {
        logits.push_back(
            dot(apply(q, position + 40).data<float>(), apply(k, position).data<float>(), 64));
    }
    return logits;
}

TEST(QkNormRopeTest, NormComesBeforeRotation) {
    const Tensor untied = gaussian({1, 64}, kFp32, 3);
    const auto right = logits_along_the_sequence(untied, true);
    const auto wrong = logits_along_the_sequence(untied, false);
    // Only with the norm first does a logit depend on the distance alone.
    EXPECT_NEAR(right[1], right[0], 1e-4);
    EXPECT_NEAR(right[2], right[0], 1e-4);
    EXPECT_GT(std::abs(wrong[1] - wrong[0]), 0.1);
    EXPECT_GT(std::abs(wrong[0] - right[0]), 0.1);

    const Tensor tied = untied.clone();  // equal within a pair of the half-split layout
    for (int c = 0; c < 32; ++c) tied.data<float>()[c + 32] = tied.data<float>()[c];
    const auto first = logits_along_the_sequence(tied, true);
    const auto last = logits_along_the_sequence(tied, false);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(first[i], last[i], 1e-4);
}

TEST(QkNormRopeTest, LogitsStayWithinTheBoundAndReachIt) {
    constexpr std::int64_t kD = 64;
    const Tensor q = make_data(DataKind::kMassiveActivations, {1, 40, 1, kD}, kFp32, 1);
    const Tensor k = make_data(DataKind::kOneHot, {1, 40, 1, kD}, kFp32, 2);
    const Tensor gq = Tensor::full({1, kD}, 1.5f, kFp32), gk = Tensor::full({1, kD}, 0.5f, kFp32);
    gq.data<float>()[3] = -3.0f;  // one gain larger than the rest sets the bound
    const Tensor a = run_forward(q, gq), b = run_forward(k, gk);
    const double bound = std::sqrt(double(kD)) * 3.0 * 0.5;
    for (int i = 0; i < 40; ++i) {
        for (int j = 0; j < 40; ++j) {
            const double logit =
                dot(a.data<float>() + i * kD, b.data<float>() + j * kD, kD) / std::sqrt(double(kD));
            EXPECT_LE(std::abs(logit), bound * (1.0 + 1e-5)) << i << ", " << j;
        }
    }
    QkNormRopeOptions options;
    options.eps = 0.0;
    const Tensor same = run_forward(gaussian({1, 1, 1, kD}, kFp32, 3), {}, {}, options);
    EXPECT_NEAR(dot(same.data<float>(), same.data<float>(), kD) / std::sqrt(double(kD)),
                std::sqrt(double(kD)), 1e-5);
}

TEST(QkNormRopeTest, GainOffsetIsAddedToTheGain) {
    const Tensor x = gaussian({1, 5, 2, 64}, kFp32, 1), dy = gaussian({1, 5, 2, 64}, kFp32, 2);
    const Tensor offset_gain = gaussian({2, 64}, kFp32, 3), gain = offset_gain.clone();
    for (std::int64_t i = 0; i < gain.numel(); ++i) gain.data<float>()[i] += 1.0f;
    QkNormRopeOptions options;
    options.gain_offset = 1.0;
    EXPECT_TRUE(same_bits(run_forward(x, offset_gain, {}, options), run_forward(x, gain)));

    const RopeTable table = make_rope_table({}, 64, 0, 5);
    const Tensor rstd = Tensor::full({1, 5, 2}, 1.0f, kFp32);
    const Tensor dx = poisoned(x.shape(), kFp32), want_dx = poisoned(x.shape(), kFp32);
    const Tensor dgain = Tensor::zeros({2, 64}, kFp32), want_dgain = Tensor::zeros({2, 64}, kFp32);
    qk_norm_rope_backward(dy, x, offset_gain, rstd, table, {}, options, dx, dgain);
    qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, want_dx, want_dgain);
    EXPECT_TRUE(same_bits(dx, want_dx));
    EXPECT_TRUE(same_bits(dgain, want_dgain));
}

TEST(QkNormRopeTest, PositionsChooseTheAngle) {
    const Tensor x = gaussian({2, 4, 1, 64}, kFp32, 1);
    const Tensor positions = Tensor::uninitialized({2, 4}, DType::kInt32);
    const std::int32_t chosen[] = {1000, 1003, 1001, 1000, 1002, 1002, 1000, 1003};
    NormRopeCase c;
    c.batch = 2, c.tokens = 4;
    for (int i = 0; i < 8; ++i) {
        positions.data<std::int32_t>()[i] = chosen[i];
        c.positions.push_back(chosen[i]);
    }
    const Tensor y = poisoned(x.shape(), kFp32), rstd = poisoned({2, 4, 1}, kFp32);
    const RopeTable table = make_rope_table({}, 64, 1000, 4);
    qk_norm_rope_forward(x, {}, table, positions, {}, y, rstd);
    EXPECT_TRUE(near(y, norm_rope(c, to_doubles(x)), 1e-6, 1e-6));

    positions.data<std::int32_t>()[5] = 1004;
    EXPECT_THROW(qk_norm_rope_forward(x, {}, table, positions, {}, y, rstd), Error);
    positions.data<std::int32_t>()[5] = 999;
    EXPECT_THROW(qk_norm_rope_forward(x, {}, table, positions, {}, y, rstd), Error);
    EXPECT_THROW(qk_norm_rope_forward(gaussian({1, 5, 1, 64}, kFp32, 1), {}, table, {}, {},
                                      poisoned({1, 5, 1, 64}, kFp32), poisoned({1, 5, 1}, kFp32)),
                 Error);
}

TEST(QkNormRopeTest, PlainRotationWorksInPlaceAndBackwardUndoesIt) {
    QkNormRopeOptions options;
    options.norm = QkNormKind::kNone;
    for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
        RopeConfig config;
        config.layout = layout;
        const Tensor x = gaussian({1, 9, 2, 96}, kFp32, 1), y = x.clone();
        const RopeTable table = make_rope_table(config, 96, 0, 9);
        qk_norm_rope_forward(y, {}, table, {}, options, y, {});
        EXPECT_TRUE(same_bits(y, run_forward(x, {}, config, options)));
        qk_norm_rope_backward(y, x, {}, {}, table, {}, options, y, {});
        EXPECT_TRUE(near(y, x, 0.0, 1e-6));
    }
}

TEST(QkNormRopeTest, BackwardMayWriteOverItsGradient) {
    for (const DType dtype : {kFp32, kBf16}) {
        const Shape shape{1, 70, 3, 80};
        const Tensor x = gaussian(shape, dtype, 1), dy = gaussian(shape, dtype, 2);
        const Tensor gain = gaussian({80}, kFp32, 3);
        const Tensor rstd = Tensor::full({1, 70, 3}, 0.5f, kFp32);
        const RopeTable table = make_rope_table({}, 80, 0, 70);
        const Tensor dx = poisoned(shape, dtype), first = Tensor::zeros({80}, kFp32);
        qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dx, first);
        const Tensor second = Tensor::full({80}, 2.0f, kFp32);
        qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dy, second);
        EXPECT_TRUE(same_bits(dy, dx));
        for (int c = 0; c < 80; ++c) {  // gain gradients are added to
            EXPECT_NEAR(second.data<float>()[c], first.data<float>()[c] + 2.0f, 1e-5);
        }
    }
}

TEST(QkNormRopeTest, GainGradientsDoNotDependOnThreads) {
    const Shape shape{3, 333, 5, 64};
    const Tensor x = gaussian(shape, kBf16, 1), dy = gaussian(shape, kBf16, 2);
    const Tensor rstd = Tensor::full({3, 333, 5}, 1.0f, kFp32), dx = poisoned(shape, kBf16);
    const RopeTable table = make_rope_table({}, 64, 0, 333);
    const int threads = omp_get_max_threads();
    for (const Shape& gain_shape : {Shape{5, 64}, Shape{64}}) {
        const Tensor gain = gaussian(gain_shape, kFp32, 3);
        Tensor first;
        for (const int count : {1, 2, 3, 7}) {
            omp_set_num_threads(count);
            const Tensor dgain = Tensor::zeros(gain_shape, kFp32);
            qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dx, dgain);
            if (!first.defined()) first = dgain;
            EXPECT_TRUE(same_bits(dgain, first)) << count << " threads";
        }
    }
    omp_set_num_threads(threads);
}

// Large results are stored past the caches; whatever does not lie in whole cache lines is not.
TEST(QkNormRopeTest, ResultsPastTheCachesHaveTheSameBits) {
    const std::int64_t usual = cpu::largest_cached_result();
    for (const Isa isa : kAllIsas) {
        limit_isa(isa);
        for (const DType dtype : {kFp32, kBf16}) {
            for (const std::int64_t dim : {32, 64, 80, 96, 128}) {
                for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
                    for (const std::int64_t padding : {0, 16, 64}) {  // elements between heads
                        const Shape shape{2, 37, 3, dim};
                        const Tensor x = gaussian(shape, dtype, 1), dy = gaussian(shape, dtype, 2);
                        const Tensor gain = gaussian({3, dim}, kFp32, 3);
                        const RopeTable table = make_rope_table({.layout = layout}, dim, 0, 37);
                        const auto run = [&](std::int64_t largest) {
                            cpu::set_largest_cached_result(largest);
                            const Tensor memory = poisoned({2, 37, 3, dim + padding}, dtype);
                            const Tensor y = memory.slice(3, padding, padding + dim);
                            const Tensor dx = poisoned(shape, dtype),
                                         rstd = poisoned({2, 37, 3}, kFp32);
                            const Tensor dgain = Tensor::zeros({3, dim}, kFp32);
                            qk_norm_rope_forward(x, gain, table, {}, {}, y, rstd);
                            qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dx, dgain);
                            return std::vector{memory, dx, dgain};
                        };
                        const auto kept = run(1 << 30), past = run(0);
                        for (std::size_t i = 0; i < kept.size(); ++i) {
                            EXPECT_TRUE(same_bits(kept[i], past[i]))
                                << name_of(isa) << " D=" << dim << " padding " << padding << ": "
                                << i;
                        }
                    }
                }
            }
        }
    }
    cpu::set_largest_cached_result(usual);
    limit_isa(Isa::kAvx512);
}

}  // namespace
}  // namespace evenkeel
