// Queries and keys together, on every device: truth, sizes, data that have broken kernels,
// independence of rows.
#include "tests/attention/qk_norm_rope_device.h"

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

constexpr DType kFp32 = DType::kFloat32;

struct Variant {
    std::int64_t dim, rotary_dim;
    RopeLayout layout;
    GainKind gain[2];
    bool norm = true;
};
constexpr RopeLayout kHalfSplit = RopeLayout::kHalfSplit, kInterleaved = RopeLayout::kInterleaved;
constexpr GainKind kNone = GainKind::kNone, kShared = GainKind::kShared,
                   kPerHead = GainKind::kPerHead;

// Each width with whole and partial rotation in both layouts; rotary widths that are multiples of
// 16, of 8, of neither; every pair of gains.
constexpr Variant kVariants[] = {
    {64, 64, kHalfSplit, {kPerHead, kPerHead}},     {64, 32, kInterleaved, {kShared, kShared}},
    {64, 2, kHalfSplit, {kPerHead, kNone}},         {96, 96, kHalfSplit, {kPerHead, kShared}},
    {96, 48, kHalfSplit, {kShared, kPerHead}},      {96, 24, kHalfSplit, {kPerHead, kPerHead}},
    {96, 16, kHalfSplit, {kNone, kPerHead}},        {96, 72, kHalfSplit, {kPerHead, kPerHead}},
    {96, 72, kInterleaved, {kPerHead, kPerHead}},   {96, 96, kInterleaved, {kNone, kNone}, false},
    {128, 128, kHalfSplit, {kPerHead, kPerHead}},   {128, 96, kHalfSplit, {kPerHead, kPerHead}},
    {128, 128, kInterleaved, {kPerHead, kPerHead}}, {128, 0, kHalfSplit, {kShared, kNone}},
    {128, 50, kInterleaved, {kPerHead, kPerHead}},  {128, 32, kHalfSplit, {kNone, kNone}, false},
    {256, 256, kHalfSplit, {kPerHead, kPerHead}},   {256, 64, kInterleaved, {kPerHead, kShared}},
    {256, 192, kHalfSplit, {kShared, kNone}},
};

using TypeAndVariant = std::tuple<DeviceType, Variant>;
class QkNormRopeDeviceVariants : public ::testing::TestWithParam<TypeAndVariant> {};

std::string type_and_variant_name(const ::testing::TestParamInfo<TypeAndVariant>& info) {
    const auto& [type, v] = info.param;
    return concat(name_of(type.device), "_", name_of(type.dtype), "_d", v.dim, "_r", v.rotary_dim,
                  v.layout == kInterleaved ? "_interleaved" : "_half_split",
                  v.norm ? "" : "_plain");
}

INSTANTIATE_TEST_SUITE_P(,
                         QkNormRopeDeviceVariants,
                         ::testing::Combine(::testing::ValuesIn(device_types()),
                                            ::testing::ValuesIn(kVariants)),
                         type_and_variant_name);

TEST_P(QkNormRopeDeviceVariants, QueriesAndKeysTogetherMatchTheReferenceOnAllData) {
    const auto& [type, v] = GetParam();
    JointCase c;
    c.dim = v.dim;
    c.heads[0] = 3, c.heads[1] = 2;
    c.rope.layout = v.layout;
    c.rope.rotary_fraction = static_cast<double>(v.rotary_dim) / static_cast<double>(v.dim);
    c.options.norm = v.norm ? QkNormKind::kRms : QkNormKind::kNone;
    for (int i = 0; i < 2; ++i) c.gain[i] = make_gain(v.gain[i], c.heads[i], c.dim, 3 + i);
    for (const DataKind kind : kAllDataKinds) {
        SCOPED_TRACE(name_of(kind));
        c.batch = kind == DataKind::kGaussian ? 2 : 1;
        c.tokens = kind == DataKind::kGaussian ? 19 : 9;
        const Tensor x = packed_data(c, kind, type.dtype, 1);
        const Tensor dy = packed_data(c, kind, type.dtype, 2);
        expect_right(c, x, dy, run_joint(type.device, c, x, dy));
        if (!v.norm) continue;
        for (const QkNormKind norm : {QkNormKind::kL2, QkNormKind::kLayerNorm}) {
            SCOPED_TRACE(name_of(norm));
            JointCase other = c;
            other.options.norm = norm;
            expect_right(other, x, dy, run_joint(type.device, other, x, dy));
        }
    }
}

class QkNormRopeDevice : public ::testing::TestWithParam<DeviceType> {
  protected:
    Device device() const { return GetParam().device; }
    DType dtype() const { return GetParam().dtype; }
    // One part of ordinary rows with a gain for each head.
    JointCase small_case(std::int64_t tokens, std::int64_t heads) const {
        JointCase c;
        c.tokens = tokens;
        c.heads[0] = heads, c.heads[1] = 0;
        c.gain[0] = gaussian({heads, c.dim}, kFp32, 3);
        return c;
    }
};

INSTANTIATE_TEST_SUITE_P(, QkNormRopeDevice, ::testing::ValuesIn(device_types()), device_type_name);

TEST_P(QkNormRopeDevice, RaggedSizesAreRight) {
    for (const std::int64_t tokens : {1, 31, 33, 257}) {
        SCOPED_TRACE(concat(tokens, " tokens"));
        JointCase c = small_case(tokens, 1);
        c.batch = tokens < 257 ? 3 : 1;
        c.heads[1] = tokens == 31 ? 9 : 1;  // more heads than a warp holds rows
        c.gain[1] = gaussian({c.dim}, kFp32, 4);
        const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
        const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
        expect_right(c, x, dy, run_joint(device(), c, x, dy));
    }
}

TEST_P(QkNormRopeDevice, PositionsFarOutChooseTheirAngle) {
    JointCase c = small_case(5, 2);
    c.batch = 2;
    c.first = 1'000'000;
    const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
    const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
    for (const bool given : {false, true}) {
        if (given) {
            for (const int offset : {4, 0, 1, 1, 3, 2, 0, 4, 4, 2}) {
                c.positions.push_back(1'000'000 + offset);
            }
        }
        expect_right(c, x, dy, run_joint(device(), c, x, dy));
    }
}

// Sequences and tokens that do not follow each other in memory, read and written in different
// places.
TEST_P(QkNormRopeDevice, PartsOfLongerSequencesKeepTheirPlace) {
    const Tensor longer = gaussian({2, 12, 3, 64}, dtype(), 1);
    const Tensor gain = on(device(), gaussian({3, 64}, kFp32, 2));
    const RopeTable table = on(device(), make_rope_table({}, 64, 0, 7));
    const auto rstd = [&] { return on(device(), poisoned({2, 7, 3}, kFp32)); };

    const Tensor x = on(device(), longer).slice(1, 3, 10);
    const Tensor around = on(device(), poisoned(longer.shape(), dtype()));
    qk_norm_rope_forward(x, gain, table, {}, {}, around.slice(1, 5, 12), rstd());
    const Tensor packed = on(device(), longer.slice(1, 3, 10).contiguous());
    const Tensor want = on(device(), poisoned(packed.shape(), dtype()));
    qk_norm_rope_forward(packed, gain, table, {}, {}, want, rstd());
    EXPECT_TRUE(same_bits(on_cpu(around).slice(1, 5, 12), on_cpu(want)));
    EXPECT_TRUE(same_bits(on_cpu(around).slice(1, 0, 5), poisoned({2, 5, 3, 64}, dtype())));

    const Tensor dy = on(device(), gaussian(longer.shape(), dtype(), 3)).slice(1, 0, 7);
    const Tensor dgain = on(device(), Tensor::zeros({3, 64}, kFp32));
    const Tensor want_dgain = on(device(), Tensor::zeros({3, 64}, kFp32));
    const Tensor ones = on(device(), Tensor::full({2, 7, 3}, 1.0f, kFp32));
    qk_norm_rope_backward(dy, x, gain, ones, table, {}, {}, around.slice(1, 5, 12), dgain);
    qk_norm_rope_backward(dy.contiguous(), packed, gain, ones, table, {}, {}, want, want_dgain);
    EXPECT_TRUE(same_bits(on_cpu(around).slice(1, 5, 12), on_cpu(want)));
    EXPECT_TRUE(same_bits(on_cpu(around).slice(1, 0, 5), poisoned({2, 5, 3, 64}, dtype())));
    EXPECT_TRUE(same_bits(on_cpu(dgain), on_cpu(want_dgain)));
}

// The two parts do not feel each other, nor how they are called.
TEST_P(QkNormRopeDevice, OneCallGivesTheBitsOfTwo) {
    JointCase c = small_case(7, 3);
    c.heads[1] = 2;
    c.gain[1] = gaussian({2, c.dim}, kFp32, 4);
    const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
    const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
    const JointResult together = run_joint(device(), c, x, dy);
    for (int i = 0; i < 2; ++i) {
        JointCase alone = small_case(7, c.heads[i]);
        alone.gain[0] = c.gain[i];
        const auto packed = [&](const Tensor& from) {
            const Tensor to = poisoned({1, 7, alone.width()}, dtype());
            alone.part(to, 0).copy_from(c.part(from, i));
            return to;
        };
        const JointResult got = run_joint(device(), alone, packed(x), packed(dy));
        EXPECT_TRUE(same_bits(alone.part(got.y, 0), c.part(together.y, i)));
        EXPECT_TRUE(same_bits(alone.part(got.dx, 0), c.part(together.dx, i)));
        EXPECT_TRUE(same_bits(got.rstd[0], together.rstd[i]));
        EXPECT_TRUE(same_bits(got.dgain[0], together.dgain[i]));
    }
}

TEST_P(QkNormRopeDevice, AHeadWithZeroGainGivesZeroAndStillLearns) {
    JointCase c = small_case(6, 3);
    for (std::int64_t i = 64; i < 128; ++i) c.gain[0].data<float>()[i] = 0.0f;
    const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
    const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
    const JointResult got = run_joint(device(), c, x, dy);
    expect_right(c, x, dy, got);
    const std::vector<double> zeros(6 * 64, 0.0);
    EXPECT_TRUE(near(c.part(got.y, 0).slice(2, 1, 2), zeros, 0.0, 0.0));
    EXPECT_TRUE(near(c.part(got.dx, 0).slice(2, 1, 2), zeros, 0.0, 0.0));
    for (int i = 64; i < 128; ++i) EXPECT_NE(got.dgain[0].data<float>()[i], 0.0f) << i;
}

TEST_P(QkNormRopeDevice, GainOffsetIsAddedToTheGain) {
    JointCase c = small_case(5, 2);
    c.options.gain_offset = 1.0;
    c.rope.rotary_fraction = 0.3125;  // 20 channels: the slow path reads gains of its own
    const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1);
    const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
    expect_right(c, x, dy, run_joint(device(), c, x, dy));
}

TEST_P(QkNormRopeDevice, ZeroRowsGiveZeroWithoutEpsToo) {
    for (int i = 0; i < 6; ++i) {
        JointCase c = small_case(4, 2);
        c.options.eps = i % 2 == 0 ? 1e-6 : 0.0;
        c.options.norm = kNorms[i / 2];
        const Tensor x = packed_data(c, DataKind::kZero, dtype(), 1);
        const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
        const JointResult got = run_joint(device(), c, x, dy);
        EXPECT_TRUE(near(c.part(got.y, 0), std::vector<double>(4 * 2 * 64, 0.0), 0.0, 0.0));
        EXPECT_TRUE(near(got.dgain[0], std::vector<double>(2 * 64, 0.0), 0.0, 0.0));
        for (const double value : to_doubles(c.part(got.dx, 0))) {
            EXPECT_TRUE(std::isfinite(value)) << value;
        }
    }
}

// Squares of these over- or underflow in fp32. Rows of all sizes share a warp.
TEST_P(QkNormRopeDevice, ExtremeRowsKeepTheirDirection) {
    for (const QkNormKind norm : kNorms) {
        SCOPED_TRACE(name_of(norm));
        JointCase c = small_case(3, 6);
        c.options.norm = norm;
        c.options.eps = 0.0;
        const double range = dtype() == DType::kFloat16 ? 1e4 : 1e37;
        const Tensor unit = packed_data(c, DataKind::kGaussian, kFp32, 1);
        const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
        for (std::int64_t i = 0; i < unit.numel(); ++i) {
            const double scales[] = {1.0, range, 1.0 / range, 1e3, std::sqrt(range), 1e-3};
            unit.data<float>()[i] *= static_cast<float>(scales[i / c.dim % 7 % 6]);
        }
        const Tensor x = unit.to(dtype());
        const JointResult got = run_joint(device(), c, x, dy);
        const NormRopeCase reference = c.reference(0);
        const double unit_roundoff = dtype() == DType::kFloat16   ? 0x1p-11
                                     : dtype() == DType::kFloat32 ? 0x1p-22
                                                                  : 0x1p-8;
        EXPECT_TRUE(near(c.part(got.y, 0), norm_rope(reference, to_doubles(c.part(x, 0))),
                         1.01 * unit_roundoff, 1e-6));
        const auto want =
            norm_rope_gradients(reference, to_doubles(c.part(dy, 0)), to_doubles(c.part(x, 0)));
        EXPECT_TRUE(near(got.dgain[0], want.dgain, 1e-5, 1e-5));
    }
}

TEST_P(QkNormRopeDevice, WhatIsNotFiniteStaysInItsRow) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
        JointCase c = small_case(3, 3);
        if (bad < 0.0f) c.options.norm = QkNormKind::kLayerNorm;
        const Tensor x = packed_data(c, DataKind::kGaussian, dtype(), 1).to(kFp32);
        x.data<float>()[70] = bad;  // token 0, head 1
        const Tensor dy = packed_data(c, DataKind::kGaussian, dtype(), 2);
        const JointResult got = run_joint(device(), c, x.to(dtype()), dy);
        for (const Tensor& result : {got.y, got.dx}) {
            const std::vector<double> values = to_doubles(c.part(result, 0));
            int not_finite = 0;
            for (std::size_t i = 0; i < values.size(); ++i) {
                if (i / 64 == 1) {
                    not_finite += !std::isfinite(values[i]);
                } else {
                    EXPECT_TRUE(std::isfinite(values[i])) << i;
                }
            }
            EXPECT_GT(not_finite, 0);
        }
    }
}

TEST_P(QkNormRopeDevice, PlainRotationWorksInPlaceAndBackwardUndoesIt) {
    QkNormRopeOptions options;
    options.norm = QkNormKind::kNone;
    for (const RopeLayout layout : {kHalfSplit, kInterleaved}) {
        for (const double fraction : {1.0, 0.75, 0.3125}) {  // 20 of 64 channels: each one alone
            RopeConfig config;
            config.layout = layout;
            config.rotary_fraction = fraction;
            const Tensor x = gaussian({1, 9, 2, 64}, dtype(), 1);
            const RopeTable table = on(device(), make_rope_table(config, 64, 0, 9));
            const Tensor there = on(device(), x.clone()), in_place = there.clone();
            const Tensor y = on(device(), poisoned(x.shape(), dtype()));
            qk_norm_rope_forward(there, {}, table, {}, options, y, {});
            qk_norm_rope_forward(in_place, {}, table, {}, options, in_place, {});
            EXPECT_TRUE(same_bits(on_cpu(in_place), on_cpu(y)));
            qk_norm_rope_backward(in_place, there, {}, {}, table, {}, options, in_place, {});
            EXPECT_TRUE(near(on_cpu(in_place), x, dtype() == DType::kFloat16 ? 0x1p-9 : 0x1p-6,
                             dtype() == DType::kFloat16 ? 4e-3 : 3e-2));
        }
    }
}

TEST_P(QkNormRopeDevice, BackwardMayWriteOverItsGradient) {
    for (const double fraction : {1.0, 0.3125}) {
        RopeConfig config;
        config.rotary_fraction = fraction;
        const Shape shape{1, 18, 3, 64};
        const Tensor x = on(device(), gaussian(shape, dtype(), 1));
        const Tensor dy = on(device(), gaussian(shape, dtype(), 2));
        const Tensor gain = on(device(), gaussian({64}, kFp32, 3));
        const Tensor rstd = on(device(), Tensor::full({1, 18, 3}, 0.5f, kFp32));
        const RopeTable table = on(device(), make_rope_table(config, 64, 0, 18));
        const Tensor dx = on(device(), poisoned(shape, dtype()));
        const Tensor first = on(device(), Tensor::zeros({64}, kFp32));
        const Tensor second = on(device(), Tensor::full({64}, 2.0f, kFp32));
        qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dx, first);
        qk_norm_rope_backward(dy, x, gain, rstd, table, {}, {}, dy, second);
        EXPECT_TRUE(same_bits(on_cpu(dy), on_cpu(dx)));
        std::vector<double> want = to_doubles(on_cpu(first));
        for (double& value : want) value += 2.0;  // gain gradients are added to
        EXPECT_TRUE(near(on_cpu(second), want, 0.0, 1e-5));
    }
}

// Contributions do not cancel: a single fp32 accumulator would be off by 1e-5.
TEST_P(QkNormRopeDevice, GainGradientsOfManyRowsAreAccurate) {
    const std::int64_t tokens = device() == Device::kCpu ? 200'000 : 6'000;
    const Shape shape{1, tokens, 1, 64};
    const Tensor x = gaussian(shape, dtype(), 1);
    RopeConfig config;
    config.rotary_fraction = 0.0;
    const Tensor there = on(device(), x), dx = on(device(), poisoned(shape, dtype()));
    const Tensor gain = on(device(), Tensor::full({64}, 1.0f, kFp32));
    const Tensor dgain = on(device(), Tensor::zeros({64}, kFp32));
    const Tensor rstd = on(device(), Tensor::full({1, tokens, 1}, 1.0f, kFp32));
    qk_norm_rope_backward(there, there, gain, rstd, make_rope_table(config, 64, 0, tokens), {}, {},
                          dx, dgain);
    std::vector<double> want(64);
    const std::vector<double> values = to_doubles(x);
    for (std::size_t i = 0; i < values.size(); ++i) want[i % 64] += values[i] * values[i];
    EXPECT_TRUE(near(on_cpu(dgain), want, 3e-7, 0.0));
}

TEST_P(QkNormRopeDevice, EmptyBatchesAreNoWork) {
    for (const Shape& shape : {Shape{0, 4, 2, 64}, Shape{1, 0, 2, 64}, Shape{1, 4, 0, 64}}) {
        const Tensor x = on(device(), Tensor::zeros(shape, dtype()));
        const Tensor y = on(device(), Tensor::zeros(shape, dtype()));
        const Tensor rstd = on(device(), Tensor::zeros({shape[0], shape[1], shape[2]}, kFp32));
        const RopeTable table = on(device(), make_rope_table({}, 64, 0, 4));
        qk_norm_rope_forward(x, {}, table, {}, {}, y, rstd);
        qk_norm_rope_backward(y, x, {}, rstd, table, {}, {}, y, {});
    }
}

}  // namespace
}  // namespace evenkeel::testing
