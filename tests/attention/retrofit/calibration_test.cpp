#include "attention/retrofit/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "attention/retrofit/gain_fit.h"
#include "framework/error.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;

AttentionConfig plain(std::int64_t heads, std::int64_t kv_heads, std::int64_t D) {
    AttentionConfig config;
    config.num_heads = heads;
    config.num_kv_heads = kv_heads;
    config.head_dim = D;
    config.qk_norm.kind = QkNormKind::kNone;
    return config;
}

TEST(Calibration, RmsOfEachHeadIsMeanAndVariationOfItsRows) {
    HeadCalibration calibration(plain(2, 1, 4), 2, 1, {.eps = 0.0});
    Tensor q = Tensor::zeros({1, 2, 2, 4}, DType::kFloat32);
    Tensor k = Tensor::full({1, 2, 1, 4}, 3.0f, DType::kFloat32);
    // Head 0: rows (2, 0, 0, 0) and (0, 4, 0, 0): rms 1 and 2, mean 1.5, deviation 0.5.
    q.data<float>()[0] = 2.0f;
    q.data<float>()[8 + 1] = 4.0f;
    calibration.update(q, k);
    EXPECT_DOUBLE_EQ(calibration.q_rms(0).mean(), 1.5);
    EXPECT_DOUBLE_EQ(calibration.q_rms(0).variation(), 0.5 / 1.5);
    EXPECT_DOUBLE_EQ(calibration.q_rms(1).mean(), 0.0);
    EXPECT_DOUBLE_EQ(calibration.q_rms(1).variation(), 0.0);
    EXPECT_DOUBLE_EQ(calibration.k_rms(0).mean(), 3.0);
    EXPECT_DOUBLE_EQ(calibration.k_rms(0).variation(), 0.0);
    EXPECT_EQ(calibration.tokens(), 2);
}

TEST(Calibration, SpreadOfSequencesOverCallsAndHeadsOverRanksMakeNoDifference) {
    constexpr std::int64_t kSequences = 12, T = 10, H = 4, K = 2, D = 32;
    const Tensor q = gaussian({kSequences, T, H, D}, DType::kFloat32, 1);
    const Tensor k = gaussian({kSequences, T, K, D}, DType::kFloat32, 2);
    const CalibrationOptions options{.max_tokens = 5 * T, .max_rows = 5 * 4, .seed = 7};
    HeadCalibration whole(plain(H, K, D), H, K, options);
    whole.update(q, k);
    HeadCalibration part(plain(H, K, D), 2, 1, options);  // the second of two ranks
    for (std::int64_t b = 0; b < kSequences; b += 3) {
        part.update(q.slice(0, b, b + 3).slice(2, 2, 4), k.slice(0, b, b + 3).slice(2, 1, 2));
    }
    EXPECT_EQ(whole.q_rms(3).mean(), part.q_rms(1).mean());
    EXPECT_EQ(whole.k_rms(1).variation(), part.k_rms(0).variation());
    const auto all = whole.sample(), own = part.sample();
    ASSERT_EQ(all.size(), 5u);
    ASSERT_EQ(own.size(), 5u);
    std::int64_t held_out = 0;
    for (std::size_t s = 0; s < all.size(); ++s) {
        EXPECT_EQ(all[s].index, own[s].index);
        EXPECT_EQ(all[s].rows, own[s].rows);
        EXPECT_EQ(all[s].held_out, own[s].held_out);
        held_out += all[s].held_out;
        ASSERT_EQ(all[s].rows.size(), 4u);
        const std::set<std::int64_t> distinct(all[s].rows.begin(), all[s].rows.end());
        EXPECT_EQ(distinct.size(), 4u);
        const std::int64_t row = all[s].rows[2];
        EXPECT_EQ(own[s].q[2 * 2 * D + D + 5],
                  q.data<float>()[((all[s].index * T + row) * H + 3) * D + 5]);
    }
    EXPECT_EQ(held_out, 1);
    EXPECT_EQ(whole.sample_bytes(), HeadCalibration::max_sample_bytes(H, K, D, T, options));
}

TEST(Calibration, FewerSequencesThanTheBoundLeaveMoreRowsToEach) {
    CalibrationOptions options{.max_tokens = 100, .max_rows = 20, .expected_sequences = 2};
    HeadCalibration calibration(plain(1, 1, 32), 1, 1, options);
    calibration.update(gaussian({2, 10, 1, 32}, DType::kFloat32, 1),
                       gaussian({2, 10, 1, 32}, DType::kFloat32, 2));
    for (const auto& sequence : calibration.sample()) EXPECT_EQ(sequence.rows.size(), 10u);
}

TEST(Calibration, NumbersThatAreNoneAreNamed) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        HeadCalibration calibration(plain(2, 1, 32), 2, 1, {});
        Tensor q = gaussian({2, 5, 2, 32}, DType::kFloat32, 1);
        const Tensor k = gaussian({2, 5, 1, 32}, type, 2);
        calibration.update(q.to(type), k);
        q.data<float>()[((1 * 5 + 3) * 2 + 1) * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
        try {
            calibration.update(q.to(type), k);
            FAIL() << "NaN was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
            EXPECT_NE(std::string(error.what())
                          .find("q: got NaN or infinity in head 1, token 3 of sequence 3"),
                      std::string::npos)
                << error.what();
        }
    }
}

TEST(Calibration, LayersThatNoGainsCanBeFittedForAreRefused) {
    AttentionConfig normed = plain(2, 1, 32);
    normed.qk_norm.kind = QkNormKind::kRms;
    EXPECT_THROW(HeadCalibration(normed, 2, 1, {}), Error);
    AttentionConfig capped = plain(2, 1, 32);
    capped.softcap = 30.0;
    EXPECT_THROW(HeadCalibration(capped, 2, 1, {}), Error);
    AttentionConfig sunk = plain(2, 1, 32);
    sunk.sink = AttentionConfig::Sink::kLearned;
    EXPECT_THROW(HeadCalibration(sunk, 2, 1, {}), Error);
    HeadCalibration empty(plain(2, 1, 32), 2, 1, {});
    EXPECT_THROW(fit_gains(empty, {}), Error);
}

TEST(Calibration, TelemetryOfAllDataIsTheLargestLogitAndTheMeanEntropy) {
    HeadCalibration calibration(plain(1, 1, 32), 1, 1, {});
    AttentionStats stats;
    stats.max_logit = Tensor::full({1}, 5.0f, DType::kFloat32);
    stats.entropy = Tensor::full({1}, 1.0f, DType::kFloat32);
    calibration.observe(stats, 1);
    stats.max_logit.fill(3.0f);
    stats.entropy.fill(2.0f);
    calibration.observe(stats, 3);
    EXPECT_DOUBLE_EQ(calibration.observed_max_logit(0), 5.0);
    EXPECT_DOUBLE_EQ(calibration.observed_entropy(0), 1.75);
}

TEST(RefineReason, NamesWhatIsAboveItsLimit) {
    EXPECT_EQ(refine_reason(0.15, 0.1, 50.0, {}), "");
    EXPECT_EQ(
        refine_reason(0.2, 0.1, 51.0, {}),
        "the variation of the queries' rms 0.2 is above 0.15, the largest logit 51 is above 50");
    EXPECT_EQ(refine_reason(0.1, 0.16, 1.0, {}),
              "the variation of the keys' rms 0.16 is above 0.15");
}

}  // namespace
}  // namespace evenkeel
