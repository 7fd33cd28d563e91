#include "attention/flash_attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/attention/flash_attention_paths.h"
#include "tests/support/compare.h"

namespace evenkeel {
namespace {

using testing::available_paths;
using testing::DataKind;
using testing::FlashInputs;
using Results = testing::FlashResults;
using testing::FlashTruth;
using testing::gaussian;
using testing::make_flash_inputs;
using testing::near;
using testing::PathGuard;
using testing::PlainFlash;
using testing::poisoned;
using testing::run_flash;
using testing::run_flash_reference;
using testing::run_plain_flash;
using testing::same_bits;
using testing::to_doubles;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every result of one path against the reference by the project's rule.
void check_path(FlashPath path,
                const FlashInputs& in,
                const AttentionOptions& options,
                const PlainFlash& plain,
                const FlashTruth& truth) {
    SCOPED_TRACE(name_of(path));
    const PathGuard guard(path);
    const Results r = run_flash(in, options);
    testing::expect_forward_near_truth(r.out, r.lse, &r.stats, plain, truth.forward);
    testing::expect_telemetry_near_truth(r.stats, truth.forward);
    testing::expect_gradients_near_truth(r.d, plain.gradients, truth);
}

void check_all_paths(const ReferenceShape& shape,
                     DType dtype,
                     DataKind kind,
                     const AttentionMask& mask) {
    AttentionOptions options;
    options.mask = mask;
    const FlashInputs in = make_flash_inputs(shape, dtype, kind);
    const PlainFlash plain = run_plain_flash(in, options);
    const FlashTruth truth = run_flash_reference(in, options);
    for (FlashPath path : available_paths()) check_path(path, in, options, plain, truth);
}

// ---- Against the reference

struct Case {
    std::string name;
    ReferenceShape shape;  // B, T, S, H, K, D
    AttentionMask mask;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FlashAttentionTest : public ::testing::TestWithParam<std::tuple<Case, DType>> {};

TEST_P(FlashAttentionTest, AgreesWithTheReferenceOnEveryPath) {
    const auto& [c, dtype] = GetParam();
    check_all_paths(c.shape, dtype, DataKind::kGaussian, c.mask);
}

void PrintTo(DType dtype, std::ostream* out) { *out << name_of(dtype); }
void PrintTo(FlashPath path, std::ostream* out) { *out << name_of(path); }

const AttentionMask kCausal{};
const AttentionMask kBidirectional{false, 0, {}};

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (std::int64_t d : {32, 64, 80, 96, 128, 192, 256}) {
        cases.push_back({"head_dim_" + std::to_string(d), {1, 100, 100, 2, 1, d}, kCausal});
    }
    for (std::int64_t t : {1, 2, 31, 33, 257}) {
        const std::string size = std::to_string(t);
        // Many heads where there are few positions, for errors that are not a matter of luck.
        const std::int64_t b = t > 100 ? 1 : t > 10 ? 5 : 400;
        cases.push_back({"causal_" + size, {b, t, t, 4, 4, 64}, kCausal});
        cases.push_back({"bidirectional_" + size, {b, t, t, 4, 2, 64}, kBidirectional});
    }
    cases.push_back({"two_key_blocks", {1, 530, 530, 1, 1, 64}, kCausal});
    cases.push_back({"narrow_key_blocks", {1, 300, 300, 2, 1, 128}, kCausal});
    cases.push_back({"multi_query", {1, 61, 61, 5, 1, 32}, kCausal});
    cases.push_back({"groups_of_three", {2, 70, 70, 6, 2, 32}, kBidirectional});
    cases.push_back({"decode_one", {3, 1, 300, 4, 2, 64}, kCausal});
    cases.push_back({"decode_seven", {1, 7, 131, 2, 1, 64}, kCausal});
    cases.push_back({"more_queries_than_keys", {1, 150, 40, 2, 1, 64}, kCausal});
    cases.push_back({"more_queries_bidirectional", {1, 150, 3, 2, 1, 64}, kBidirectional});
    cases.push_back({"window_1", {1, 40, 40, 2, 1, 64}, {true, 1, {}}});
    cases.push_back({"window_50", {1, 400, 400, 2, 2, 64}, {true, 50, {}}});
    const std::int64_t endless = std::numeric_limits<std::int64_t>::max();
    cases.push_back({"window_endless", {1, 40, 40, 2, 1, 64}, {true, endless, {}}});
    cases.push_back({"window_endless_two_sided", {1, 5, 40, 1, 1, 64}, {false, endless, {}}});
    cases.push_back({"window_two_sided", {1, 400, 400, 1, 1, 64}, {false, 33, {}}});
    cases.push_back({"window_decode", {1, 5, 400, 2, 1, 64}, {true, 70, {}}});
    cases.push_back({"window_that_misses_all_keys", {1, 200, 20, 1, 1, 64}, {false, 10, {}}});
    cases.push_back({"documents", {1, 400, 400, 2, 1, 64}, {true, 0, {0, 1, 130, 130, 331, 400}}});
    cases.push_back({"documents_bidirectional", {1, 300, 300, 2, 2, 64}, {false, 0, {0, 97, 300}}});
    cases.push_back({"documents_window", {1, 300, 300, 2, 2, 64}, {true, 20, {0, 97, 300}}});
    // Rows of one tile whose keys lie in different blocks.
    cases.push_back({"window_across_key_blocks", {1, 1100, 1100, 1, 1, 64}, {true, 200, {}}});
    cases.push_back(
        {"documents_across_key_blocks", {1, 1100, 1100, 2, 1, 64}, {true, 0, {0, 500, 530, 1100}}});
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         FlashAttentionTest,
                         ::testing::Combine(::testing::ValuesIn(all_cases()),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" +
                                    name_of(std::get<1>(info.param));
                         });

class FlashAttentionDataTest : public ::testing::TestWithParam<std::tuple<DataKind, DType>> {};

TEST_P(FlashAttentionDataTest, AgreesWithTheReferenceOnDataThatBreaksKernels) {
    const auto& [kind, dtype] = GetParam();
    // Eight heads, for errors that are not a matter of one row's luck.
    check_all_paths({1, 290, 290, 8, 4, 64}, dtype, kind, kCausal);
    check_all_paths({1, 65, 65, 8, 8, 128}, dtype, kind, kBidirectional);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         FlashAttentionDataTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kAllDataKinds),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& info) {
                             return name_of(std::get<0>(info.param)) + "_" +
                                    name_of(std::get<1>(info.param));
                         });

// ---- Properties, on every path

class FlashAttentionPathTest : public ::testing::TestWithParam<std::tuple<FlashPath, DType>> {
  protected:
    void SetUp() override {
        if (!flash_path_available(path()))
            GTEST_SKIP() << "this processor has no " << name_of(path());
        guard_.emplace(path());
    }
    FlashPath path() const { return std::get<0>(GetParam()); }
    DType dtype() const { return std::get<1>(GetParam()); }

  private:
    std::optional<PathGuard> guard_;
};

INSTANTIATE_TEST_SUITE_P(Paths,
                         FlashAttentionPathTest,
                         ::testing::Combine(::testing::ValuesIn(kAllFlashPaths),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& info) {
                             return std::string(name_of(std::get<0>(info.param))) + "_" +
                                    name_of(std::get<1>(info.param));
                         });

TEST_P(FlashAttentionPathTest, DoesNotDependOnTheNumberOfThreads) {
    const int threads = omp_get_max_threads();
    const FlashInputs in = make_flash_inputs({2, 600, 600, 4, 2, 64}, dtype(), DataKind::kGaussian);
    omp_set_num_threads(1);
    const Results one = run_flash(in, {});
    for (int n : {2, 3}) {
        omp_set_num_threads(n);
        const Results several = run_flash(in, {});
        EXPECT_TRUE(same_bits(several.out, one.out)) << "out, " << n << " threads";
        EXPECT_TRUE(same_bits(several.lse, one.lse)) << "lse, " << n << " threads";
        EXPECT_TRUE(same_bits(several.d.dq, one.d.dq)) << "dq, " << n << " threads";
        EXPECT_TRUE(same_bits(several.d.dk, one.d.dk)) << "dk, " << n << " threads";
        EXPECT_TRUE(same_bits(several.d.dv, one.d.dv)) << "dv, " << n << " threads";
        EXPECT_TRUE(same_bits(several.stats.max_logit, one.stats.max_logit)) << n << " threads";
        EXPECT_TRUE(same_bits(several.stats.entropy, one.stats.entropy)) << n << " threads";
    }
    omp_set_num_threads(threads);
}

TEST_P(FlashAttentionPathTest, SequenceDoesNotDependOnItsNeighboursInTheBatch) {
    const FlashInputs both =
        make_flash_inputs({2, 120, 120, 2, 1, 64}, dtype(), DataKind::kGaussian);
    const Results of_both = run_flash(both, {});
    const FlashInputs alone{both.q.slice(0, 1, 2),
                            both.k.slice(0, 1, 2),
                            both.v.slice(0, 1, 2),
                            both.dout.slice(0, 1, 2),
                            {1, 120, 120, 2, 1, 64}};
    const Results of_one = run_flash(alone, {});
    EXPECT_TRUE(same_bits(of_one.out, of_both.out.slice(0, 1, 2)));
    EXPECT_TRUE(same_bits(of_one.d.dq, of_both.d.dq.slice(0, 1, 2)));
    EXPECT_TRUE(same_bits(of_one.d.dk, of_both.d.dk.slice(0, 1, 2)));
}

TEST_P(FlashAttentionPathTest, TelemetryLeavesTheOutputAsItIs) {
    const FlashInputs in = make_flash_inputs({1, 300, 300, 2, 1, 64}, dtype(), DataKind::kGaussian);
    const Results with = run_flash(in, {});
    const Tensor out = poisoned(in.q.shape(), dtype()),
                 lse = poisoned(with.lse.shape(), DType::kFloat32);
    flash_attention_forward(in.q, in.k, in.v, {}, out, lse, nullptr);
    EXPECT_TRUE(same_bits(out, with.out));
    EXPECT_TRUE(same_bits(lse, with.lse));
}

TEST_P(FlashAttentionPathTest, ReadsAndWritesSlicesOfPackedTensors) {
    const std::int64_t B = 2, T = 37, H = 4, K = 2, D = 64;
    const Tensor qkv = gaussian({B, T, H + 2 * K, D}, dtype(), 5);
    const Tensor dqkv = poisoned(qkv.shape(), dtype());
    const FlashInputs packed{qkv.slice(2, 0, H),
                             qkv.slice(2, H, H + K),
                             qkv.slice(2, H + K, H + 2 * K),
                             gaussian({B, T, H, D}, dtype(), 6),
                             {B, T, T, H, K, D}};
    const FlashInputs apart{packed.q.clone(), packed.k.clone(), packed.v.clone(), packed.dout,
                            packed.shape};
    const Tensor before = qkv.clone();
    const Results want = run_flash(apart, {});
    const Tensor out = poisoned({B, T, H, D}, dtype()), lse = poisoned({B, H, T}, DType::kFloat32);
    flash_attention_forward(packed.q, packed.k, packed.v, {}, out, lse, nullptr);
    flash_attention_backward(packed.q, packed.k, packed.v, out, lse, packed.dout, {},
                             dqkv.slice(2, 0, H), dqkv.slice(2, H, H + K),
                             dqkv.slice(2, H + K, H + 2 * K));
    EXPECT_TRUE(same_bits(out, want.out));
    EXPECT_TRUE(same_bits(dqkv.slice(2, 0, H), want.d.dq));
    EXPECT_TRUE(same_bits(dqkv.slice(2, H, H + K), want.d.dk));
    EXPECT_TRUE(same_bits(dqkv.slice(2, H + K, H + 2 * K), want.d.dv));
    EXPECT_TRUE(same_bits(qkv, before)) << "inputs must stay as they are";
}

TEST_P(FlashAttentionPathTest, AcceptsEmptyTensors) {
    for (const ReferenceShape& s :
         {ReferenceShape{0, 5, 5, 2, 1, 64}, ReferenceShape{2, 0, 0, 2, 1, 64}}) {
        const Results r = run_flash(make_flash_inputs(s, dtype(), DataKind::kZero), {});
        EXPECT_TRUE(near(r.stats.max_logit, {-kInfinity, -kInfinity}, 0.0, 0.0));
        EXPECT_TRUE(near(r.stats.entropy, {0.0, 0.0}, 0.0, 0.0));
    }
    // Queries without a single key.
    const Results r =
        run_flash(make_flash_inputs({1, 3, 0, 2, 1, 64}, dtype(), DataKind::kZero), {});
    EXPECT_TRUE(near(r.out, std::vector<double>(384, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.d.dq, std::vector<double>(384, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.lse, std::vector<double>(6, -kInfinity), 0.0, 0.0));
}

TEST_P(FlashAttentionPathTest, RowsThatSeeNothingAreZeroAndLeftOutOfTelemetry) {
    // Queries 0 .. 9 stand before the first key.
    const ReferenceShape s{1, 12, 2, 1, 1, 64};
    FlashInputs in = make_flash_inputs(s, dtype(), DataKind::kGaussian);
    const Results r = run_flash(in, {});
    EXPECT_TRUE(near(r.out.slice(1, 0, 10), std::vector<double>(640, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.d.dq.slice(1, 0, 10), std::vector<double>(640, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(r.lse.slice(2, 0, 10), std::vector<double>(10, -kInfinity), 0.0, 0.0));
    const FlashTruth truth = run_flash_reference(in, {});
    EXPECT_TRUE(near(r.stats.entropy, truth.forward.entropy, 1e-5, 1e-6));
}

TEST_P(FlashAttentionPathTest, LargeLogitsInMaskedCellsAreNotReported) {
    // Queries stand at 90 .. 99 and see 20 keys each: keys 0 .. 70 are seen by none.
    const std::int64_t T = 10, S = 100, D = 64;
    FlashInputs in = make_flash_inputs({1, T, S, 1, 1, D}, dtype(), DataKind::kGaussian);
    in.q.fill(1.0f);
    AttentionOptions options;
    options.mask.window = 20;
    const Results want = run_flash(in, options);
    in.k.slice(1, 0, 71).fill(1e4f);
    const Results got = run_flash(in, options);
    EXPECT_LT(to_doubles(want.stats.max_logit)[0], 10.0);
    EXPECT_TRUE(same_bits(got.stats.max_logit, want.stats.max_logit));
    EXPECT_TRUE(same_bits(got.stats.entropy, want.stats.entropy));
    EXPECT_TRUE(same_bits(got.lse, want.lse));
    EXPECT_TRUE(same_bits(got.out, want.out));
    // A key that only the last query sees changes no other row of its register tile.
    in.k.slice(1, S - 1, S).fill(1e4f);
    const Results last = run_flash(in, options);
    EXPECT_TRUE(same_bits(last.lse.slice(2, 0, T - 1), want.lse.slice(2, 0, T - 1)));
    EXPECT_NEAR(to_doubles(last.stats.max_logit)[0], 8e4, 400.0);
}

TEST_P(FlashAttentionPathTest, MaximumOfNegativeLogitsIsNegative) {
    const ReferenceShape s{1, 300, 300, 1, 1, 64};
    FlashInputs in = make_flash_inputs(s, dtype(), DataKind::kGaussian);
    in.q = Tensor::full({1, 300, 1, 64}, 2.0f, dtype());
    in.k = Tensor::full({1, 300, 1, 64}, -8.0f, dtype());
    const Results r = run_flash(in, {});
    EXPECT_TRUE(near(r.stats.max_logit, {-128.0}, 1e-6, 0.0));
    double entropy = 0.0;  // every row is uniform
    for (int t = 1; t <= 300; ++t) entropy += std::log(t) / 300.0;
    EXPECT_TRUE(near(r.stats.entropy, {entropy}, 1e-5, 0.0));
}

TEST_P(FlashAttentionPathTest, EqualLogitsGiveTheMeanOfTheValues) {
    // Small integers sum exactly, so the mean over 2^n keys is exact too.
    const std::int64_t S = 256;
    Tensor v = Tensor::uninitialized({1, S, 1, 64}, DType::kFloat32);
    for (std::int64_t i = 0; i < v.numel(); ++i)
        v.data<float>()[i] = static_cast<float>(i / 64 % 2);
    const Tensor q = gaussian({1, 3, 1, 64}, dtype(), 1),
                 k = Tensor::full({1, S, 1, 64}, 0.7f, dtype());
    AttentionOptions options;
    options.mask.causal = false;
    const FlashInputs in{q, k, v.to(dtype()), q, {1, 3, S, 1, 1, 64}};
    const Results r = run_flash(in, options);
    EXPECT_TRUE(near(r.out, std::vector<double>(192, 0.5), 0.0, 0.0));
    EXPECT_TRUE(near(r.stats.entropy, {std::log(256.0)}, 1e-6, 0.0));
}

TEST_P(FlashAttentionPathTest, OutputScalesWithTheValues) {
    FlashInputs in = make_flash_inputs({1, 80, 80, 2, 1, 64}, dtype(), DataKind::kGaussian);
    // Sixteenths: seven times them is exact in bf16 too.
    Tensor v = in.v.to(DType::kFloat32);
    for (std::int64_t i = 0; i < v.numel(); ++i) {
        v.data<float>()[i] = std::round(4.0f * v.data<float>()[i]) / 16.0f;
    }
    in.v = v.to(dtype());
    const Results once = run_flash(in, {});
    for (std::int64_t i = 0; i < v.numel(); ++i) v.data<float>()[i] *= 7.0f;
    in.v = v.to(dtype());
    const Results seven = run_flash(in, {});
    std::vector<double> want = to_doubles(once.out);
    for (double& x : want) x *= 7.0;
    const double unit = dtype() == DType::kBFloat16 ? 0x1p-7 : 0x1p-21;
    EXPECT_TRUE(near(seven.out, want, unit, 1e-6));
    EXPECT_TRUE(same_bits(seven.lse, once.lse));
    EXPECT_TRUE(same_bits(seven.stats.max_logit, once.stats.max_logit));
}

TEST_P(FlashAttentionPathTest, NanInGivesNanOut) {
    const ReferenceShape s{1, 40, 40, 1, 1, 64};
    const Tensor clean = run_flash(make_flash_inputs(s, dtype(), DataKind::kGaussian), {}).out;
    for (int which = 0; which < 3; ++which) {
        FlashInputs in = make_flash_inputs(s, dtype(), DataKind::kGaussian);
        const Tensor& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
        x.slice(1, 20, 21).fill(NAN);
        const Results r = run_flash(in, {});
        for (double o : to_doubles(r.out.slice(1, 20, 21))) EXPECT_TRUE(std::isnan(o)) << which;
        if (which == 2) continue;
        EXPECT_TRUE(same_bits(r.out.slice(1, 0, 20), clean.slice(1, 0, 20))) << "unseen " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.lse)[20])) << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.stats.max_logit)[0])) << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.stats.entropy)[0])) << "input " << which;
        EXPECT_TRUE(std::isnan(to_doubles(r.d.dv)[20 * 64])) << "input " << which;
    }
}

TEST_P(FlashAttentionPathTest, MaximumIsRightWhereLaterBlocksLieFarBelowIt) {
    // One key with a logit of 80 first, then 600 keys at -80: later blocks must not move the
    // maximum.
    const std::int64_t S = 601;
    Tensor k = Tensor::full({1, S, 1, 64}, -10.0f, dtype());
    k.slice(1, 0, 1).fill(10.0f);
    const FlashInputs in{Tensor::full({1, 1, 1, 64}, 1.0f, dtype()),
                         k,
                         gaussian({1, S, 1, 64}, dtype(), 4),
                         gaussian({1, 1, 1, 64}, dtype(), 5),
                         {1, 1, S, 1, 1, 64}};
    const Results r = run_flash(in, {});
    EXPECT_TRUE(near(r.stats.max_logit, {80.0}, 1e-6, 0.0));
    EXPECT_TRUE(near(r.out, to_doubles(in.v.slice(1, 0, 1)), 1e-6, 0.0));
    // And the other way round: the maximum comes last.
    k.fill(-10.0f);
    k.slice(1, S - 1, S).fill(10.0f);
    const Results last = run_flash(in, {});
    EXPECT_TRUE(near(last.out, to_doubles(in.v.slice(1, S - 1, S)), 1e-6, 0.0));
    EXPECT_TRUE(near(last.stats.entropy, {0.0}, 0.0, 1e-6));
}

TEST(FlashAttentionMemoryTest, GrowsLinearlyWithTheSequence) {
    auto peak = [](std::int64_t T) {
        const FlashInputs in =
            make_flash_inputs({1, T, T, 1, 1, 32}, DType::kBFloat16, DataKind::kGaussian);
        const std::size_t before = Buffer::live_bytes(Device::kCpu);
        Buffer::reset_peak(Device::kCpu);
        run_flash(in, {});
        return Buffer::peak_bytes(Device::kCpu) - before;
    };
    // One thread: whether the tiles of two live at the same time is a matter of chance.
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const std::size_t one = peak(2048), two = peak(4096), four = peak(8192);
    omp_set_num_threads(threads);
    // The tiles are a constant; the rest doubles with the length.
    EXPECT_NEAR(static_cast<double>(four - two), 2.0 * static_cast<double>(two - one),
                0.02 * static_cast<double>(four - two));
    EXPECT_LT(four, std::size_t{8192} * 8192 / 4);
}

TEST(FlashAttentionErrorTest, RejectsWhatItCannotCompute) {
    auto forward = [](std::int64_t H, std::int64_t K, std::int64_t D,
                      AttentionOptions options = {}) {
        const Tensor q = Tensor::zeros({1, 4, H, D}, DType::kFloat32);
        const Tensor k = Tensor::zeros({1, 4, K, D}, DType::kFloat32);
        flash_attention_forward(q, k, k, options, q.clone(),
                                Tensor::zeros({1, H, 4}, DType::kFloat32), nullptr);
    };
    EXPECT_NO_THROW(forward(4, 2, 64));
    EXPECT_THROW(forward(4, 3, 64), Error);
    EXPECT_THROW(forward(4, 2, 72), Error);
    EXPECT_THROW(forward(4, 2, 64, {{true, -1, {}}, 0.0}), Error);
    EXPECT_THROW(forward(4, 2, 64, {{true, 0, {0, 3}}, 0.0}), Error);
    EXPECT_THROW(forward(4, 2, 64, {{true, 0, {0, 3, 2, 4}}, 0.0}), Error);
    EXPECT_THROW(forward(4, 2, 64, {{}, -1.0}), Error);
    for (double scale : {static_cast<double>(NAN), static_cast<double>(INFINITY), 1e-31, 1e31}) {
        EXPECT_THROW(forward(4, 2, 64, {{}, scale}), Error) << scale;
    }
    EXPECT_NO_THROW(forward(4, 2, 64, {{}, 1e-30}));
    EXPECT_NO_THROW(forward(4, 2, 64, {{}, 1e30}));
    const Tensor q = Tensor::zeros({1, 4, 2, 64}, DType::kFloat32);
    const Tensor lse = Tensor::zeros({1, 2, 4}, DType::kFloat32);
    EXPECT_THROW(flash_attention_forward(q, q, q.to(DType::kBFloat16), {}, q.clone(), lse, nullptr),
                 Error);
    EXPECT_THROW(flash_attention_forward(q, q, q, {}, q.clone(), lse.slice(2, 0, 3), nullptr),
                 Error);
}

TEST(FlashAttentionErrorTest, WritesOnlyToMemoryOfItsOwn) {
    // q, k, v and a fourth of the same kind in every token.
    const Tensor packed = Tensor::zeros({1, 5, 4, 64}, DType::kFloat32);
    const auto rows = [&](std::int64_t head, std::int64_t token = 0) {
        return packed.slice(1, token, token + 4).slice(2, head, head + 1);
    };
    const Tensor lse = Tensor::zeros({1, 1, 4}, DType::kFloat32);
    const auto forward = [&](const Tensor& out) -> std::string {
        try {
            flash_attention_forward(rows(0), rows(1), rows(2), {}, out, lse, nullptr);
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    const std::string op = "[flash_attention_forward] ";
    EXPECT_EQ(forward(rows(3)), "no error");
    EXPECT_EQ(forward(rows(0)), op + "out: got memory of q, want memory of its own");
    EXPECT_EQ(forward(rows(1, 1)), op + "out: got memory of k, want memory of its own");
    EXPECT_EQ(forward(rows(2)), op + "out: got memory of v, want memory of its own");

    const Tensor out = rows(0).clone(), dout = rows(0).clone();
    const Tensor gradients = packed.clone();
    const auto gradient = [&](std::int64_t head) {
        return gradients.slice(1, 0, 4).slice(2, head, head + 1);
    };
    const auto backward = [&](const Tensor& dq, const Tensor& dk, const Tensor& dv) -> std::string {
        try {
            flash_attention_backward(rows(0), rows(1), rows(2), out, lse, dout, {}, dq, dk, dv);
        } catch (const Error& error) {
            const std::string what = error.what();
            return what.substr(what.find("] ") + 2, what.find(", want") - what.find("] ") - 2);
        }
        return "no error";
    };
    EXPECT_EQ(backward(gradient(0), gradient(1), gradient(2)), "no error");
    EXPECT_EQ(backward(rows(0), gradient(1), gradient(2)), "dq: got memory of q");
    EXPECT_EQ(backward(dout, gradient(1), gradient(2)), "dq: got memory of dout");
    EXPECT_EQ(backward(gradient(0), out, gradient(2)), "dk: got memory of out");
    EXPECT_EQ(backward(gradient(0), gradient(0), gradient(2)), "dk: got memory of dq");
    EXPECT_EQ(backward(gradient(0), gradient(1), gradient(1)), "dv: got memory of dk");
}

}  // namespace
}  // namespace evenkeel
