#include "attention/retrofit/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
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
        const CalibrationSequence &a = *all[s].sequence, &b = *own[s].sequence;
        EXPECT_EQ(a.index, b.index);
        EXPECT_EQ(a.rows, b.rows);
        EXPECT_EQ(all[s].held_out, own[s].held_out);
        held_out += all[s].held_out;
        ASSERT_EQ(a.rows.size(), 3u);
        const std::set<std::int64_t> distinct(a.rows.begin(), a.rows.end());
        EXPECT_EQ(distinct.size(), 3u);
        EXPECT_EQ(b.q[2 * 2 * D + D + 5],
                  q.data<float>()[((a.index * T + a.rows[2]) * H + 3) * D + 5]);
    }
    EXPECT_EQ(held_out, 1);
    EXPECT_LE(whole.sample_bytes(), HeadCalibration::max_sample_bytes(H, K, D, T, options));
}

TEST(Calibration, RowsAreHalvedWhenMoreSequencesCome) {
    HeadCalibration calibration(plain(1, 1, 32), 1, 1, {.max_tokens = 100, .max_rows = 25});
    const Tensor q = gaussian({6, 10, 1, 32}, DType::kFloat32, 1);
    const Tensor k = gaussian({6, 10, 1, 32}, DType::kFloat32, 2);
    const std::size_t want[] = {10, 10, 5, 5, 5, 3};
    std::vector<std::int64_t> rows;
    for (std::int64_t b = 0; b < 6; ++b) {
        calibration.update(q.slice(0, b, b + 1), k.slice(0, b, b + 1));
        const auto sample = calibration.sample();
        ASSERT_EQ(sample.size(), static_cast<std::size_t>(b + 1));
        for (const auto& kept : sample) {
            const CalibrationSequence& sequence = *kept.sequence;
            ASSERT_EQ(sequence.rows.size(), want[b]);
            for (std::size_t r = 0; r < sequence.rows.size(); ++r) {
                EXPECT_EQ(sequence.q[r * 32 + 3],
                          q.data<float>()[(sequence.index * 10 + sequence.rows[r]) * 32 + 3]);
            }
        }
        const auto& first = sample[0].sequence->rows;
        if (b > 0) EXPECT_TRUE(std::includes(rows.begin(), rows.end(), first.begin(), first.end()));
        rows = first;
    }
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
    EXPECT_EQ(refine_reason(0.2, 0.1, 51.0, {}),
              "CV q 0.2 (limit 0.15), largest logit 51 (limit 50)");
    EXPECT_EQ(refine_reason(0.1, 0.16, 1.0, {}), "CV k 0.16 (limit 0.15)");
    EXPECT_EQ(refine_reason(0.38, 0.775, 1.0, {}), "CV q 0.38, k 0.775 (limit 0.15)");
    EXPECT_EQ(refine_reason(0.1, 0.1, 60.0, {}), "largest logit 60 (limit 50)");
}

}  // namespace
}  // namespace evenkeel
