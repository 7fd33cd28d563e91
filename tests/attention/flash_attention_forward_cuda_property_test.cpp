// What holds of the forward pass of flash attention on a GPU, whatever the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/flash_attention.h"
#include "tests/attention/flash_forward_runs.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::check_flash_forward;
using testing::DataKind;
using testing::expect_same;
using testing::FlashInputs;
using testing::gaussian;
using testing::make_flash_inputs;
using testing::near;
using testing::on;
using testing::on_cpu;
using testing::poisoned;
using testing::run_flash;
using testing::same_bits;
using testing::to_doubles;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const AttentionMask kBidirectional{false, 0, {}};

class FlashForwardCudaPropertyTest : public ::testing::TestWithParam<std::tuple<DType, Device>> {
  protected:
    DType dtype() const { return std::get<0>(GetParam()); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashForwardCudaPropertyTest);

INSTANTIATE_TEST_SUITE_P(
    Types,
    FlashForwardCudaPropertyTest,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                       ::testing::ValuesIn(testing::test_gpus())),
    [](const auto& info) { return name_of(std::get<0>(info.param)); });

TEST_P(FlashForwardCudaPropertyTest, GivesTheSameBitsEveryTime) {
    const FlashInputs in = make_flash_inputs({1, 200, 200, 4, 2, 64}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults first = run_flash(in, {});
    expect_same(run_flash(in, {}), first, "second time");
}

TEST_P(FlashForwardCudaPropertyTest, TelemetryLeavesTheOutputAsItIs) {
    const FlashInputs in = make_flash_inputs({1, 140, 140, 2, 1, 96}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults with = run_flash(in, {}), without = run_flash(in, {}, false);
    EXPECT_TRUE(same_bits(without.out, with.out));
    EXPECT_TRUE(same_bits(without.lse, with.lse));
}

TEST_P(FlashForwardCudaPropertyTest, SequenceDoesNotDependOnItsNeighboursInTheBatch) {
    const FlashInputs both =
        make_flash_inputs({2, 120, 120, 2, 1, 128}, dtype(), DataKind::kGaussian);
    const FlashInputs alone{both.q.slice(0, 1, 2),
                            both.k.slice(0, 1, 2),
                            both.v.slice(0, 1, 2),
                            both.dout.slice(0, 1, 2),
                            {1, 120, 120, 2, 1, 128}};
    const testing::ForwardResults of_both = run_flash(both, {}), of_one = run_flash(alone, {});
    EXPECT_TRUE(same_bits(of_one.out, of_both.out.slice(0, 1, 2)));
    EXPECT_TRUE(same_bits(of_one.lse, of_both.lse.slice(0, 1, 2)));
}

TEST_P(FlashForwardCudaPropertyTest, RowsDoNotDependOnTheirNeighbours) {
    // A row whose maxima outgrow its sums in the second and third block of keys, in the midst of
    // rows whose maxima hardly grow: these must not be scaled along with it.
    FlashInputs in = make_flash_inputs({1, 16, 400, 1, 1, 64}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults want = run_flash(in, {kBidirectional, 0.0});
    in.q.slice(1, 3, 4).copy_from(
        make_flash_inputs({1, 1, 1, 1, 1, 64}, dtype(), DataKind::kOneHot).q);
    const testing::ForwardResults got = run_flash(in, {kBidirectional, 0.0});
    EXPECT_FALSE(same_bits(got.lse, want.lse));
    for (const auto& [begin, end] : {std::pair{0, 3}, std::pair{4, 16}}) {
        EXPECT_TRUE(same_bits(got.out.slice(1, begin, end), want.out.slice(1, begin, end)));
        EXPECT_TRUE(same_bits(got.lse.slice(2, begin, end), want.lse.slice(2, begin, end)));
    }
}

TEST_P(FlashForwardCudaPropertyTest, ReadsAndWritesSlicesOfPackedTensors) {
    const std::int64_t B = 2, T = 37, H = 4, K = 2, D = 64;
    const Tensor host = gaussian({B, T, H + 2 * K, D}, dtype(), 5);
    const FlashInputs apart{host.slice(2, 0, H),
                            host.slice(2, H, H + K),
                            host.slice(2, H + K, H + 2 * K),
                            {},
                            {B, T, T, H, K, D}};
    const testing::ForwardResults want = run_flash(apart, {});
    const Tensor qkv = on(Device::kCuda, host);
    // The output in the middle of a larger tensor, whose other heads must stay as they are.
    const Tensor around = on(Device::kCuda, poisoned({B, T, H + 3, D}, dtype()));
    const Tensor lse = on(Device::kCuda, poisoned({B, H, T}, DType::kFloat32));
    flash_attention_forward(qkv.slice(2, 0, H), qkv.slice(2, H, H + K),
                            qkv.slice(2, H + K, H + 2 * K), {}, around.slice(2, 1, H + 1), lse,
                            nullptr);
    const Tensor result = on_cpu(around);
    EXPECT_TRUE(same_bits(result.slice(2, 1, H + 1), want.out));
    EXPECT_TRUE(same_bits(on_cpu(lse), want.lse));
    EXPECT_TRUE(same_bits(result.slice(2, 0, 1), poisoned({B, T, 1, D}, dtype())));
    EXPECT_TRUE(same_bits(result.slice(2, H + 1, H + 3), poisoned({B, T, 2, D}, dtype())));
    EXPECT_TRUE(same_bits(on_cpu(qkv), host)) << "inputs must stay as they are";
}

TEST_P(FlashForwardCudaPropertyTest, AcceptsEmptyTensors) {
    for (const ReferenceShape& s :
         {ReferenceShape{0, 5, 5, 2, 1, 64}, ReferenceShape{2, 0, 0, 2, 1, 64}}) {
        const testing::ForwardResults r =
            run_flash(make_flash_inputs(s, dtype(), DataKind::kZero), {});
        EXPECT_TRUE(near(r.stats.max_logit, {-kInfinity, -kInfinity}, 0.0, 0.0));
        EXPECT_TRUE(near(r.stats.entropy, {0.0, 0.0}, 0.0, 0.0));
    }
    // Queries without a single key.
    const testing::ForwardResults r =
        run_flash(make_flash_inputs({1, 3, 0, 2, 1, 64}, dtype(), DataKind::kZero), {});
    EXPECT_TRUE(near(r.out, std::vector<double>(384, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.lse, std::vector<double>(6, -kInfinity), 0.0, 0.0));
    EXPECT_TRUE(near(r.stats.max_logit, {-kInfinity, -kInfinity}, 0.0, 0.0));
}

TEST_P(FlashForwardCudaPropertyTest, RowsThatSeeNothingAreZeroAndLeftOutOfTelemetry) {
    // Queries 0 .. 139 stand before the first key: a tile with none that sees, and one with some.
    const FlashInputs in = make_flash_inputs({1, 150, 10, 1, 1, 64}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults r = run_flash(in, {});
    EXPECT_TRUE(near(r.out.slice(1, 0, 140), std::vector<double>(140 * 64, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.lse.slice(2, 0, 140), std::vector<double>(140, -kInfinity), 0.0, 0.0));
    const ReferenceResult truth = testing::run_flash_reference(in, {}).forward;
    EXPECT_TRUE(near(r.stats.max_logit, truth.max_logit, 1e-6, 1e-6));
    EXPECT_TRUE(near(r.stats.entropy, truth.entropy, 1e-5, 1e-6));
}

TEST_P(FlashForwardCudaPropertyTest, LargeLogitsInMaskedCellsAreNotReported) {
    // Queries stand at 90 .. 99 and see 20 keys each: keys 0 .. 70 are seen by none.
    const std::int64_t T = 10, S = 100, D = 64;
    FlashInputs in = make_flash_inputs({1, T, S, 1, 1, D}, dtype(), DataKind::kGaussian);
    in.q.fill(1.0f);
    AttentionOptions options;
    options.mask.window = 20;
    const testing::ForwardResults want = run_flash(in, options);
    in.k.slice(1, 0, 71).fill(1e4f);
    expect_same(run_flash(in, options), want, "large masked keys");
    EXPECT_LT(to_doubles(want.stats.max_logit)[0], 10.0);
    // A key that only the last query sees changes no other row of its tile.
    in.k.slice(1, S - 1, S).fill(1e4f);
    const testing::ForwardResults last = run_flash(in, options);
    EXPECT_TRUE(same_bits(last.lse.slice(2, 0, T - 1), want.lse.slice(2, 0, T - 1)));
    EXPECT_TRUE(same_bits(last.out.slice(1, 0, T - 1), want.out.slice(1, 0, T - 1)));
    EXPECT_NEAR(to_doubles(last.stats.max_logit)[0], 8e4, 400.0);
}

TEST_P(FlashForwardCudaPropertyTest, MaximumOfNegativeLogitsIsNegative) {
    FlashInputs in = make_flash_inputs({1, 200, 200, 1, 1, 64}, dtype(), DataKind::kGaussian);
    in.q = Tensor::full({1, 200, 1, 64}, 2.0f, dtype());
    in.k = Tensor::full({1, 200, 1, 64}, -8.0f, dtype());
    const testing::ForwardResults r = run_flash(in, {});
    EXPECT_TRUE(near(r.stats.max_logit, {-128.0}, 1e-6, 0.0));
    double entropy = 0.0;  // every row is uniform
    for (int t = 1; t <= 200; ++t) entropy += std::log(t) / 200.0;
    EXPECT_TRUE(near(r.stats.entropy, {entropy}, 1e-5, 0.0));
}

TEST_P(FlashForwardCudaPropertyTest, MaximumBeforeSoftcapIsNegativeWhereAllLogitsAre) {
    FlashInputs in = make_flash_inputs({1, 200, 200, 1, 1, 64}, dtype(), DataKind::kGaussian);
    in.q = Tensor::full({1, 200, 1, 64}, 2.0f, dtype());
    in.k = Tensor::full({1, 200, 1, 64}, -8.0f, dtype());
    AttentionOptions options;
    options.softcap = 50.0;
    const testing::ForwardResults r = run_flash(in, options);
    EXPECT_TRUE(near(r.stats.max_logit_uncapped, {-128.0}, 1e-6, 0.0));
    EXPECT_TRUE(near(r.stats.max_logit, {50.0 * std::tanh(-128.0 / 50.0)}, 1e-6, 0.0));
    EXPECT_TRUE(near(r.stats.entropy_share, {1.0}, 1e-6, 0.0));
    EXPECT_TRUE(near(r.stats.saturation, {0.0}, 0.0, 0.0));
}

TEST_P(FlashForwardCudaPropertyTest, SoftcapFarAboveAllLogitsChangesNothing) {
    const FlashInputs in = make_flash_inputs({1, 70, 70, 2, 1, 64}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults want = run_flash(in, {});
    for (const double softcap : {1e5, 1e6}) {
        AttentionOptions options;
        options.softcap = softcap;
        const testing::ForwardResults got = run_flash(in, options);
        EXPECT_TRUE(near(got.lse, want.lse, 1e-6, 1e-6)) << "softcap " << softcap;
        EXPECT_TRUE(near(got.stats.max_logit, want.stats.max_logit, 1e-6, 0.0))
            << "softcap " << softcap;
        EXPECT_TRUE(near(got.stats.max_logit_uncapped, want.stats.max_logit, 1e-6, 0.0))
            << "softcap " << softcap;
    }
}

TEST_P(FlashForwardCudaPropertyTest, RowsThatSeeOnlyTheSinkAreZeroAndLeftOutOfTelemetry) {
    const FlashInputs in = make_flash_inputs({1, 150, 10, 1, 1, 64}, dtype(), DataKind::kGaussian);
    for (const double softcap : {0.0, 5.0}) {
        AttentionOptions options;
        options.softcap = softcap;
        options.sink = Tensor::full({1}, 1.5f, DType::kFloat32);
        const testing::ForwardResults r = run_flash(in, options);
        EXPECT_TRUE(near(r.out.slice(1, 0, 140), std::vector<double>(140 * 64, 0.0), 0.0, 0.0));
        EXPECT_TRUE(near(r.lse.slice(2, 0, 140), std::vector<double>(140, 1.5), 1e-6, 0.0));
        check_flash_forward(in, options);
    }
}

TEST_P(FlashForwardCudaPropertyTest, SaturationCountsRowsWithTwoKeysThatPickOne) {
    // Row 0 sees one key, row 1 picks its second, rows 2 and 3 are uniform over 3 and 4.
    FlashInputs in = make_flash_inputs({1, 4, 4, 1, 1, 64}, dtype(), DataKind::kZero);
    in.q.slice(1, 1, 2).fill(4.0f);
    in.k.slice(1, 1, 2).fill(4.0f);
    const testing::ForwardResults r = run_flash(in, {});
    EXPECT_TRUE(near(r.stats.saturation, {1.0 / 3}, 1e-6, 0.0));
    EXPECT_TRUE(near(r.stats.entropy_share, {2.0 / 3}, 1e-6, 0.0));
    AttentionOptions options;
    options.sink = Tensor::full({1}, 500.0f, DType::kFloat32);
    const testing::ForwardResults sunk = run_flash(in, options);
    EXPECT_TRUE(near(sunk.stats.saturation, {1.0}, 0.0, 0.0));
    EXPECT_TRUE(near(sunk.stats.entropy_share, {0.0}, 0.0, 1e-6));
    EXPECT_TRUE(near(sunk.stats.max_logit, {128.0}, 1e-6, 0.0)) << "the sink is no logit";
}

TEST_P(FlashForwardCudaPropertyTest, NanPassesThroughSoftcap) {
    AttentionOptions options;
    options.softcap = 5.0;
    options.sink = Tensor::zeros({1}, DType::kFloat32);
    const FlashInputs in = make_flash_inputs({1, 40, 40, 1, 1, 64}, dtype(), DataKind::kGaussian);
    const testing::ForwardResults clean = run_flash(in, options);
    in.k.slice(1, 20, 21).fill(NAN);
    const testing::ForwardResults r = run_flash(in, options);
    for (double o : to_doubles(r.out.slice(1, 20, 40))) EXPECT_TRUE(std::isnan(o));
    EXPECT_TRUE(same_bits(r.out.slice(1, 0, 20), clean.out.slice(1, 0, 20)));
    EXPECT_TRUE(std::isnan(to_doubles(r.stats.max_logit)[0]));
    EXPECT_TRUE(std::isnan(to_doubles(r.stats.max_logit_uncapped)[0]));
    EXPECT_TRUE(std::isnan(to_doubles(r.stats.entropy_share)[0]));
}

TEST_P(FlashForwardCudaPropertyTest, EqualLogitsGiveTheMeanOfTheValues) {
    // Small integers sum exactly, so the mean over 2^n keys is exact too.
    const std::int64_t S = 256;
    Tensor v = Tensor::uninitialized({1, S, 1, 64}, DType::kFloat32);
    for (std::int64_t i = 0; i < v.numel(); ++i)
        v.data<float>()[i] = static_cast<float>(i / 64 % 2);
    const FlashInputs in{gaussian({1, 3, 1, 64}, dtype(), 1),
                         Tensor::full({1, S, 1, 64}, 0.7f, dtype()),
                         v.to(dtype()),
                         {},
                         {1, 3, S, 1, 1, 64}};
    const testing::ForwardResults r = run_flash(in, {kBidirectional, 0.0});
    EXPECT_TRUE(near(r.out, std::vector<double>(192, 0.5), 0.0, 0.0));
    EXPECT_TRUE(near(r.stats.entropy, {std::log(256.0)}, 1e-6, 0.0));
}

TEST_P(FlashForwardCudaPropertyTest, NanInGivesNanOut) {
    const testing::ForwardResults clean =
        run_flash(make_flash_inputs({1, 40, 40, 1, 1, 64}, dtype(), DataKind::kGaussian), {});
    for (int which = 0; which < 3; ++which) {
        FlashInputs in = make_flash_inputs({1, 40, 40, 1, 1, 64}, dtype(), DataKind::kGaussian);
        const Tensor& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
        x.slice(1, 20, 21).fill(NAN);
        const testing::ForwardResults r = run_flash(in, {});
        for (double o : to_doubles(r.out.slice(1, 20, 21))) {
            EXPECT_TRUE(std::isnan(o)) << "input " << which << ": got " << o;
        }
        if (which == 2) continue;
        // Earlier queries do not see the key.
        EXPECT_TRUE(same_bits(r.out.slice(1, 0, 20), clean.out.slice(1, 0, 20)))
            << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.lse)[20])) << "input " << which;
        EXPECT_FALSE(std::isnan(to_doubles(r.lse)[19])) << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.stats.max_logit)[0])) << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.stats.entropy)[0])) << "input " << which;
    }
}

TEST_P(FlashForwardCudaPropertyTest, NanStaysAmongItsNeighbours) {
    // Of another document and another block of keys.
    const AttentionOptions options{{true, 0, {0, 128, 200}}, 0.0};
    const ReferenceShape shape{1, 200, 200, 1, 1, 64};
    const testing::ForwardResults clean =
        run_flash(make_flash_inputs(shape, dtype(), DataKind::kGaussian), options);
    for (int which = 0; which < 3; ++which) {
        const FlashInputs in = make_flash_inputs(shape, dtype(), DataKind::kGaussian);
        const Tensor& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
        x.slice(1, 130, 131).fill(NAN);
        const testing::ForwardResults r = run_flash(in, options);
        EXPECT_TRUE(same_bits(r.out.slice(1, 0, 128), clean.out.slice(1, 0, 128)))
            << "input " << which;
        EXPECT_TRUE(same_bits(r.lse.slice(2, 0, 128), clean.lse.slice(2, 0, 128)))
            << "input " << which;
    }
}

TEST_P(FlashForwardCudaPropertyTest, MaximumIsRightWhereverItComes) {
    // One key with a logit of 80 among 300 at -80; blocks are visited from the last to the first.
    const std::int64_t S = 301;
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{150}, S - 1}) {
        const Tensor k = Tensor::full({1, S, 1, 64}, -10.0f, dtype());
        k.slice(1, at, at + 1).fill(10.0f);
        const FlashInputs in{Tensor::full({1, 1, 1, 64}, 1.0f, dtype()),
                             k,
                             gaussian({1, S, 1, 64}, dtype(), 4),
                             {},
                             {1, 1, S, 1, 1, 64}};
        const testing::ForwardResults r = run_flash(in, {});
        EXPECT_TRUE(near(r.stats.max_logit, {80.0}, 1e-6, 0.0)) << "at " << at;
        EXPECT_TRUE(near(r.stats.entropy, {0.0}, 0.0, 1e-6)) << "at " << at;
        EXPECT_TRUE(near(r.out, to_doubles(in.v.slice(1, at, at + 1)), 1e-6, 0.0)) << "at " << at;
    }
}

TEST_P(FlashForwardCudaPropertyTest, MaximumThatCreepsUpKeepsItsSums) {
    // Every block of keys raises the logits by 3 in powers of 2: less than what makes the sums be
    // scaled anew, so that it happens in every third block only.
    const std::int64_t S = 520, D = 128;
    FlashInputs in = make_flash_inputs({1, 16, S, 1, 1, D}, dtype(), DataKind::kGaussian);
    for (std::int64_t j = 0; j < S; ++j) {
        // Earlier keys, which come later, are larger; q has a channel of 1 for them.
        in.k.slice(1, j, j + 1).slice(3, 0, 1).fill(static_cast<float>((S - j) / 64 * 24));
    }
    in.q.slice(3, 0, 1).fill(1.0f);
    check_flash_forward(in, {kBidirectional, 0.0});
}

TEST_P(FlashForwardCudaPropertyTest, HugeLogitsPickTheLargest) {
    // Logits of 10^9 and more, whose rounded products with the scale would lie above their maximum.
    const std::int64_t S = 200, D = 64;
    const float size = dtype() == DType::kBFloat16 ? 1e6f : 6e4f;
    FlashInputs in = make_flash_inputs({1, 16, S, 1, 1, D}, dtype(), DataKind::kGaussian);
    in.q.fill(size);
    for (std::int64_t j = 0; j < S; ++j) {
        in.k.slice(1, j, j + 1).fill(size * (j == 77 ? 1.0f : 0.75f));
    }
    const testing::ForwardResults r = run_flash(in, {kBidirectional, 0.0});
    const std::vector<double> want = to_doubles(in.v.slice(1, 77, 78));
    for (std::int64_t t = 0; t < 16; ++t) {
        EXPECT_TRUE(near(r.out.slice(1, t, t + 1), want, 0.0, 0.0)) << "row " << t;
    }
    EXPECT_TRUE(near(r.stats.entropy, {0.0}, 0.0, 1e-6));
}

TEST_P(FlashForwardCudaPropertyTest, RejectsWhatItCannotCompute) {
    const Device cuda = Device::kCuda;
    const auto forward = [&](DType type, std::int64_t head_dim, const Tensor* keys = nullptr) {
        const Tensor q = Tensor::zeros({1, 4, 2, head_dim}, type, cuda);
        flash_attention_forward(q, keys ? *keys : q, q, {},
                                Tensor::uninitialized(q.shape(), type, cuda),
                                Tensor::uninitialized({1, 2, 4}, DType::kFloat32, cuda), nullptr);
    };
    const auto message = [&](auto&&... arguments) -> std::string {
        try {
            forward(arguments...);
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(message(dtype(), 64), "no error");
    EXPECT_NE(message(DType::kInt32, 64).find("int32, want fp32, bf16 or fp16"), std::string::npos)
        << message(DType::kInt32, 64);
    EXPECT_NE(message(dtype(), 80).find("head_dim: got 80, want one of 64, 96, 128, 256"),
              std::string::npos)
        << message(dtype(), 80);
    const Tensor host = Tensor::zeros({1, 4, 2, 64}, dtype());
    EXPECT_NE(message(dtype(), 64, &host).find("k: got device cpu, want cuda"), std::string::npos)
        << message(dtype(), 64, &host);
    const Tensor shifted =
        Tensor::zeros({1, 4, 2, 72}, dtype(), cuda).slice(3, 1, 65);  // an element off
    EXPECT_NE(message(dtype(), 64, &shifted).find("k: got an address"), std::string::npos)
        << message(dtype(), 64, &shifted);
    // Heads apart by no multiple of 16 bytes, tokens by one.
    const std::int64_t width = dtype() == DType::kFloat32 ? 66 : 68;
    const Tensor odd = Tensor::zeros({1, 4, 2, width}, dtype(), cuda).slice(3, 0, 64);
    EXPECT_NE(message(dtype(), 64, &odd).find("k: got a stride of " + std::to_string(width)),
              std::string::npos)
        << message(dtype(), 64, &odd);
}

TEST_P(FlashForwardCudaPropertyTest, RejectsMoreSequencesOrHeadsThanAGridHas) {
    const auto message = [&](std::int64_t sequences, std::int64_t heads) -> std::string {
        const Device cuda = Device::kCuda;
        const Tensor q = Tensor::uninitialized({sequences, 0, heads, 64}, dtype(), cuda);
        const Tensor lse = Tensor::uninitialized({sequences, heads, 0}, DType::kFloat32, cuda);
        try {
            flash_attention_forward(q, q, q, {}, q, lse, nullptr);
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(message(65535, 1), "no error");
    EXPECT_EQ(message(65536, 2),
              "[flash_attention_forward] q: got 65536 sequences and 2 heads, want at most 65535 of "
              "each on cuda");
    EXPECT_EQ(message(3, 65536),
              "[flash_attention_forward] q: got 3 sequences and 65536 heads, want at most 65535 of "
              "each on cuda");
}

}  // namespace
}  // namespace evenkeel
