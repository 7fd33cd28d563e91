#include "attention/retrofit/gain_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attention/logit_bound.h"
#include "attention/retrofit/head_rows.h"
#include "framework/error.h"
#include "framework/rng.h"
#include "tests/attention/retrofit/head_samples.h"

namespace evenkeel {
namespace {

using testing::HeadKind;
using testing::kAllHeadKinds;
using testing::make_heads;
using testing::name_of;
using testing::plain_attention;

constexpr std::int64_t kSequences = 64, T = 32, H = 4, K = 2, D = 32;

HeadCalibration calibrate(HeadKind kind, const AttentionConfig& config = plain_attention(H, K, D)) {
    HeadCalibration calibration(config, H, K, {});
    calibration.update(make_heads(kind, false, {kSequences, T, H, D}, 1),
                       make_heads(kind, true, {kSequences, T, K, D}, 1));
    return calibration;
}

GainFit fit(const HeadCalibration& calibration, GainEstimator estimator, double bound = 0.0) {
    return fit_gains(calibration, {.estimator = estimator, .refine = false, .bound = bound});
}

TEST(GainFit, ScalarsAreOnesAndTheMeanRms) {
    const HeadCalibration calibration = calibrate(HeadKind::kFluctuating);
    const GainFit ones = fit(calibration, GainEstimator::kOnes);
    const GainFit mean = fit(calibration, GainEstimator::kMeanRms);
    for (std::int64_t h = 0; h < H; ++h) {
        for (std::int64_t c = 0; c < D; ++c) {
            EXPECT_EQ(ones.q_gain.data<float>()[h * D + c], 1.0f);
            EXPECT_FLOAT_EQ(mean.q_gain.data<float>()[h * D + c],
                            static_cast<float>(calibration.q_rms(h).mean()));
        }
        const HeadFit& head = mean.heads[static_cast<std::size_t>(h)];
        EXPECT_NEAR(head.chosen.fit.mean, head.mean_rms.fit.mean, 1e-6 * head.mean_rms.fit.mean);
        EXPECT_NEAR(ones.heads[static_cast<std::size_t>(h)].mean_rms.held_out.mean,
                    head.mean_rms.held_out.mean, 1e-6 * head.mean_rms.held_out.mean);
        EXPECT_LE(head.chosen.max_logit, head.chosen.bound);
        EXPECT_NEAR(head.chosen.bound, std::sqrt(32.0) * head.q_mean * head.k_mean,
                    1e-5 * head.chosen.bound);
    }
    for (std::int64_t g = 0; g < K; ++g) {
        EXPECT_FLOAT_EQ(mean.k_gain.data<float>()[g * D + 7],
                        static_cast<float>(calibration.k_rms(g).mean()));
    }
}

TEST(GainFit, MatchedDeviationIsThatOfTheLogitsThatWere) {
    // Rows all of rms 2 and 3: nothing fluctuates, and the deviation is matched by the rms.
    Tensor q = make_heads(HeadKind::kFluctuating, false, {kSequences, T, H, D}, 1);
    Tensor k = make_heads(HeadKind::kFluctuating, true, {kSequences, T, K, D}, 1);
    const auto resize = [](const Tensor& rows, double rms) {
        for (std::int64_t r = 0; r < rows.numel() / D; ++r) {
            float* row = rows.data<float>() + r * D;
            double sum = 0.0;
            for (std::int64_t c = 0; c < D; ++c) {
                sum += static_cast<double>(row[c]) * static_cast<double>(row[c]);
            }
            const double factor = rms / std::sqrt(sum / D);
            for (std::int64_t c = 0; c < D; ++c) {
                row[c] = static_cast<float>(factor * static_cast<double>(row[c]));
            }
        }
    };
    resize(q, 2.0);
    resize(k, 3.0);
    HeadCalibration calibration(plain_attention(H, K, D), H, K, {});
    calibration.update(q, k);
    for (GainEstimator estimator : {GainEstimator::kMatchedStd, GainEstimator::kKlTied}) {
        const GainFit found = fit(calibration, estimator);
        for (std::int64_t h = 0; h < H; ++h) {
            for (std::int64_t c = 0; c < D; ++c) {
                EXPECT_NEAR(found.q_gain.data<float>()[h * D + c], 2.0f, 1e-5f);
            }
            EXPECT_NEAR(found.heads[static_cast<std::size_t>(h)].chosen.held_out.p99, 0.0, 1e-10);
        }
    }
}

TEST(GainFit, DivergenceFallsOnHeldOutRowsOfEveryHead) {
    for (HeadKind kind : kAllHeadKinds) {
        const HeadCalibration calibration = calibrate(kind);
        const GainFit tied = fit(calibration, GainEstimator::kKlTied);
        const GainFit untied = fit(calibration, GainEstimator::kKlUntied);
        for (std::size_t h = 0; h < tied.heads.size(); ++h) {
            const HeadFit& head = tied.heads[h];
            const std::string what = concat(name_of(kind), ", head ", h);
            EXPECT_LT(head.chosen.held_out.mean, head.mean_rms.held_out.mean) << what;
            EXPECT_LT(head.chosen.fit.mean, head.mean_rms.fit.mean) << what;
            EXPECT_LE(untied.heads[h].chosen.fit.mean, head.chosen.fit.mean * (1.0 + 1e-6)) << what;
            EXPECT_EQ(head.reason, "") << what;
            EXPECT_FALSE(head.ridged) << what;
            EXPECT_LE(head.iterations, 15) << what;
        }
    }
}

// The numbers behind each other, of both tensors.
std::vector<float> all_gains(const GainFit& fit) {
    const float* q = fit.q_gain.data<float>();
    const float* k = fit.k_gain.data<float>();
    std::vector<float> gains(q, q + fit.q_gain.numel());
    gains.insert(gains.end(), k, k + fit.k_gain.numel());
    return gains;
}

TEST(GainFit, HeadsOfOneTwoAndFourRanksGetTheSameGains) {
    const Tensor q = make_heads(HeadKind::kBiased, false, {kSequences, T, H, D}, 1);
    const Tensor k = make_heads(HeadKind::kBiased, true, {kSequences, T, K, D}, 1);
    for (GainEstimator estimator :
         {GainEstimator::kMatchedStd, GainEstimator::kKlTied, GainEstimator::kKlUntied}) {
        const GainFit whole = fit(calibrate(HeadKind::kBiased), estimator);
        for (std::int64_t P : {2, 4}) {
            const std::int64_t heads = H / P, kv_heads = std::max<std::int64_t>(1, K / P);
            for (std::int64_t rank = 0; rank < P; ++rank) {
                const std::int64_t first = rank * heads, kv_first = first / (H / K);
                HeadCalibration calibration(plain_attention(H, K, D), heads, kv_heads, {});
                for (std::int64_t b = 0; b < kSequences; b += 16) {
                    calibration.update(
                        q.slice(0, b, b + 16).slice(2, first, first + heads),
                        k.slice(0, b, b + 16).slice(2, kv_first, kv_first + kv_heads));
                }
                const GainFit part = fit(calibration, estimator);
                const GainFit want{whole.q_gain.slice(0, first, first + heads),
                                   whole.k_gain.slice(0, kv_first, kv_first + kv_heads),
                                   {}};
                EXPECT_EQ(all_gains(part), all_gains(want)) << "rank " << rank << " of " << P;
            }
        }
    }
}

TEST(GainFit, GainsMoveByLittleMoreThanTheRoundingOfTheData) {
    Tensor q = make_heads(HeadKind::kHot, false, {kSequences, T, H, D}, 1);
    Tensor k = make_heads(HeadKind::kHot, true, {kSequences, T, K, D}, 1);
    const auto gains = [&] {
        HeadCalibration calibration(plain_attention(H, K, D), H, K, {});
        calibration.update(q, k);
        return all_gains(fit(calibration, GainEstimator::kKlTied));
    };
    const std::vector<float> before = gains();
    const CounterRng rng(4, purpose("rounding"));
    for (const Tensor& rows : {q, k}) {
        for (std::int64_t i = 0; i < rows.numel(); ++i) {
            rows.data<float>()[i] *=
                1.0f + 1e-7f * static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
        }
    }
    const std::vector<float> after = gains();
    for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_NEAR(after[i], before[i], 2e-6f * before[i]) << "gain " << i;
    }
}

}  // namespace
}  // namespace evenkeel
