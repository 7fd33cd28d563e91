// Every kind of norm, gain, rotation and width against the reference, on every instruction set.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>

#include "attention/qk_norm_rope.h"
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

Tensor packed_copy(const Tensor& source) {
    const Tensor copy = packed_slice(source.shape(), source.dtype());
    copy.copy_from(source);
    return copy;
}

enum class GainKind { kNone, kShared, kPerHead, kPlain };  // plain: no norm at all

struct Variant {
    DType dtype;
    std::int64_t dim;
    double fraction;
    RopeLayout layout;
    GainKind gain;
    QkNormKind norm;
};

std::string name_of(const ::testing::TestParamInfo<Variant>& info) {
    static constexpr const char* kGains[] = {"no_gain", "shared", "per_head", "plain"};
    const Variant& v = info.param;
    static constexpr const char* kNorms[] = {"none", "rms", "l2", "layer_norm"};
    return concat(evenkeel::name_of(v.dtype), "_", kNorms[static_cast<int>(v.norm)], "_d", v.dim,
                  "_r", static_cast<int>(v.fraction * static_cast<double>(v.dim)), "_",
                  v.layout == RopeLayout::kInterleaved ? "interleaved" : "half_split", "_",
                  kGains[static_cast<int>(v.gain)]);
}

std::vector<Variant> variants() {
    std::vector<Variant> all;
    int turn = 0;
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t dim : {32, 64, 80, 96, 128, 192, 256}) {
            for (const double fraction : {0.0, 0.25, 0.5, 0.75, 1.0}) {
                for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
                    // Every norm with every gain.
                    const auto gain = static_cast<GainKind>(turn % 4);
                    const auto norm = static_cast<QkNormKind>(1 + turn % 3);
                    ++turn;
                    all.push_back({dtype, dim, fraction, layout, gain,
                                   gain == GainKind::kPlain ? QkNormKind::kNone : norm});
                }
            }
            ++turn;  // so that every gain meets every fraction
        }
    }
    return all;
}

class QkNormRopeVariants : public ::testing::TestWithParam<Variant> {
  protected:
    void TearDown() override { limit_isa(Isa::kAvx512); }
};

INSTANTIATE_TEST_SUITE_P(All, QkNormRopeVariants, ::testing::ValuesIn(variants()), name_of);

// Forward and backward, out of and into slices of packed tensors, for every instruction set.
TEST_P(QkNormRopeVariants, MatchesReferenceOnAllData) {
    const Variant& v = GetParam();
    NormRopeCase c;
    c.batch = 2, c.tokens = 33, c.heads = 3, c.dim = v.dim;
    c.rope.rotary_fraction = v.fraction;
    c.rope.layout = v.layout;
    c.norm = v.norm;
    QkNormRopeOptions options;
    options.norm = v.norm;
    const Shape shape{c.batch, c.tokens, c.heads, c.dim};
    Tensor gain;
    if (v.gain == GainKind::kShared) gain = gaussian({c.dim}, kFp32, 3);
    if (v.gain == GainKind::kPerHead) gain = gaussian({c.heads, c.dim}, kFp32, 3);
    if (gain.defined()) {
        for (std::int64_t i = 0; i < c.heads * c.dim; ++i) {
            c.gain.push_back(gain.data<float>()[i % gain.numel()]);
        }
    }
    const RopeTable table = make_rope_table(c.rope, c.dim, 0, c.tokens);

    for (const DataKind kind : testing::kAllDataKinds) {
        const Tensor x = packed_copy(make_data(kind, shape, v.dtype, 1));
        const Tensor dy = packed_copy(make_data(kind, shape, v.dtype, 2));
        const std::vector<double> want_y = norm_rope(c, to_doubles(x));
        const Tensor plain_y = tensor_of(norm_rope(c, to_floats(x)), shape, v.dtype);
        const auto want = norm_rope_gradients(c, to_doubles(dy), to_doubles(x));
        const auto plain = norm_rope_gradients(c, to_floats(dy), to_floats(x));
        const Tensor plain_dx = tensor_of(plain.dx, shape, v.dtype);
        for (const Isa isa : kAllIsas) {
            SCOPED_TRACE(concat(testing::name_of(kind), ", ", evenkeel::name_of(isa)));
            limit_isa(isa);
            const Tensor y = packed_slice(shape, v.dtype);
            const Tensor rstd = poisoned({c.batch, c.tokens, c.heads}, kFp32);
            qk_norm_rope_forward(x, gain, table, {}, options, y, rstd);
            EXPECT_TRUE(within_error_of_plain(y, plain_y, want_y, 2.0));

            const Tensor dx = packed_slice(shape, v.dtype);
            const Tensor dgain = gain.defined() ? Tensor::zeros(gain.shape(), kFp32) : Tensor();
            qk_norm_rope_backward(dy, x, gain, rstd, table, {}, options, dx, dgain);
            EXPECT_TRUE(within_error_of_plain(dx, plain_dx, want.dx, 3.0));
            if (v.gain == GainKind::kPerHead) {
                EXPECT_TRUE(within_error_of_plain(
                    dgain, tensor_of(plain.dgain, gain.shape(), kFp32), want.dgain, 3.0));
            } else if (v.gain == GainKind::kShared) {
                std::vector<double> sum(c.dim), plain_sum(c.dim);
                for (std::int64_t i = 0; i < c.heads * c.dim; ++i) {
                    sum[i % c.dim] += want.dgain[i];
                    plain_sum[i % c.dim] += plain.dgain[i];
                }
                EXPECT_TRUE(
                    within_error_of_plain(dgain, tensor_of(plain_sum, {c.dim}, kFp32), sum, 3.0));
            }
        }
    }
}

}  // namespace
}  // namespace evenkeel
