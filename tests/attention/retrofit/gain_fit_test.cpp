#include "attention/retrofit/gain_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/logit_bound.h"
#include "attention/retrofit/head_rows.h"
#include "framework/error.h"
#include "framework/rng.h"
#include "tests/attention/retrofit/head_samples.h"
#include "tests/support/data.h"

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

// A gain of nearly nothing would have a gradient of nearly everything while a norm comes in.
TEST(GainFit, NoFittedGainIsNearlyNothing) {
    // Keys without a channel of queries would want that channel's gain to vanish.
    Tensor q = make_heads(HeadKind::kFluctuating, false, {kSequences, T, H, D}, 1);
    const Tensor k = make_heads(HeadKind::kFluctuating, true, {kSequences, T, K, D}, 1);
    for (std::int64_t r = 0; r < q.numel() / D; ++r) {
        // Noise that has grown with the row: it says less than the norm makes of it.
        float* row = q.data<float>() + r * D;
        row[3] = (r % 2 == 0 ? 1.0f : -1.0f) * 0.1f * row[3];
    }
    HeadCalibration calibration(plain_attention(H, K, D), H, K, {});
    calibration.update(q, k);
    for (const GainEstimator estimator : {GainEstimator::kKlTied, GainEstimator::kKlUntied}) {
        GainFitOptions options{.estimator = estimator, .refine = false};
        const auto least_share = [&](const GainFit& found) {
            float least = std::numeric_limits<float>::infinity();
            for (std::int64_t i = 0; i < H * D; ++i) {
                const double mean = found.heads[static_cast<std::size_t>(i / D)].q_mean;
                least = std::min(least, found.q_gain.data<float>()[i] / static_cast<float>(mean));
            }
            return least;
        };
        options.least_share = 0.5;
        const GainFit held = fit_gains(calibration, options);
        EXPECT_NEAR(least_share(held), 0.5f, 1e-6f) << "something wants to be less";
        for (const HeadFit& head : held.heads) {
            EXPECT_LE(head.chosen.fit.mean, head.mean_rms.fit.mean);
        }
        EXPECT_GE(least_share(fit_gains(calibration, {.estimator = estimator, .refine = false})),
                  1.0f / 32.0f * (1.0f - 1e-6f));
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

TEST(GainFit, RefinesHeadsThatNeedItAndSaysWhy) {
    const GainFit found = fit_gains(calibrate(HeadKind::kHot), {});
    for (const HeadFit& head : found.heads) {
        EXPECT_EQ(head.estimator, GainEstimator::kKlTied);
        EXPECT_NE(head.reason.find("largest logit "), std::string::npos) << head.reason;
        EXPECT_LT(head.chosen.held_out.mean, head.mean_rms.held_out.mean);
    }
    // Gains have nothing to do with what fluctuates here, and there are few rows: the fit is one of chance.
    Tensor q = testing::gaussian({4, 8, H, D}, DType::kFloat32, 1);
    Tensor k = testing::gaussian({4, 8, K, D}, DType::kFloat32, 2);
    const CounterRng rng(1, purpose("norms"));
    for (const Tensor& rows : {q, k}) {
        for (std::int64_t i = 0; i < rows.numel(); ++i) {
            rows.data<float>()[i] *=
                static_cast<float>(std::exp(0.3 * rng.normal(static_cast<std::uint64_t>(i / D))));
        }
    }
    HeadCalibration small(plain_attention(H, K, D), H, K, {});
    small.update(q, k);
    int kept = 0;
    for (const HeadFit& head : fit_gains(small, {}).heads) {
        EXPECT_LE(head.chosen.held_out.mean, head.mean_rms.held_out.mean);
        if (head.estimator == GainEstimator::kKlTied) continue;
        ++kept;
        EXPECT_NE(head.reason.find("do worse on held-out rows"), std::string::npos) << head.reason;
        EXPECT_NEAR(head.chosen.held_out.mean, head.mean_rms.held_out.mean, 1e-12);
    }
    EXPECT_GE(kept, 2);
    const HeadCalibration calm = [] {
        HeadCalibration calibration(plain_attention(H, K, D), H, K, {});
        calibration.update(testing::gaussian({4, 8, H, D}, DType::kFloat32, 1),
                           testing::gaussian({4, 8, K, D}, DType::kFloat32, 2));
        return calibration;
    }();
    for (const HeadFit& head : fit_gains(calm, {}).heads) EXPECT_EQ(head.reason, "");
}

TEST(GainFit, BoundHoldsAndGainsAtItAreThoseThatPushAgainstIt) {
    AttentionConfig yarn = plain_attention(H, K, D);
    yarn.rope.scaling = RopeConfig::Scaling::kYarn;
    yarn.rope.factor = 4.0;
    yarn.rope.rotary_fraction = 0.5;
    yarn.softmax_scale = 0.3;
    for (const AttentionConfig& config : {plain_attention(H, K, D), yarn}) {
        const HeadCalibration calibration = calibrate(HeadKind::kFluctuating, config);
        AttentionConfig normed = config;
        normed.softmax_scale = config.logit_scale();
        normed.qk_norm = {};
        for (GainEstimator estimator :
             {GainEstimator::kOnes, GainEstimator::kMeanRms, GainEstimator::kMatchedStd,
              GainEstimator::kKlTied, GainEstimator::kKlUntied}) {
            const double bound = estimator == GainEstimator::kOnes ? 3.0 : 8.0;
            const GainFit found = fit(calibration, estimator, bound);
            const auto bounds = logit_bounds(normed, found.q_gain, found.k_gain, H, K);
            for (std::int64_t h = 0; h < H; ++h) {
                const HeadFit& head = found.heads[static_cast<std::size_t>(h)];
                EXPECT_LE(bounds[static_cast<std::size_t>(h)], bound * (1.0 + 1e-14));
                EXPECT_EQ(head.chosen.bound, bounds[static_cast<std::size_t>(h)]);
                EXPECT_LE(head.chosen.max_logit, bound);
                EXPECT_TRUE(head.at_bound);
                EXPECT_NEAR(head.chosen.bound, bound, 1e-6 * bound);
            }
        }

        // Karush, Kuhn and Tucker: no gain can move within its limits to lower the divergence.
        GainFitOptions options;
        options.estimator = GainEstimator::kKlTied;
        options.ridge = 0.0;
        options.bound = 8.0;
        const GainFit found = fit_gains(calibration, options);
        const HeadRows rows(calibration);
        const FeatureMap map = rows.map(GainTie::kPairs);
        const auto features = static_cast<std::size_t>(map.features());
        std::int64_t at_limit = 0, inside = 0;
        for (std::int64_t h = 0; h < H; ++h) {
            const double k_gain = static_cast<double>(found.k_gain.data<float>()[h / 2 * D]);
            const auto objectives =
                rows.objectives(h, k_gain, rows.keys(h / 2, false), GainTie::kPairs);
            std::vector<double> gains(features), gradient(features), hessian(features * features);
            for (std::int64_t c = 0; c < D; ++c) {
                gains[static_cast<std::size_t>(map.feature_of(c))] =
                    static_cast<double>(found.q_gain.data<float>()[h * D + c]);
            }
            objectives.fit.evaluate(gains, gradient.data(), hessian.data());
            for (std::int64_t c = 0; c < D; ++c) {
                const auto f = static_cast<std::size_t>(map.feature_of(c));
                const double turned = c < 2 * map.pairs ? rope_magnitude(config.rope) : 1.0;
                const double limit = 8.0 / (config.logit_scale() * D * k_gain * turned * turned);
                if (gains[f] >= limit * (1.0 - 1e-6)) {
                    EXPECT_LE(gradient[f], 1e-8) << "head " << h << ", channel " << c;
                    ++at_limit;
                } else {
                    EXPECT_NEAR(gradient[f], 0.0, 1e-7) << "head " << h << ", channel " << c;
                    ++inside;
                }
            }
        }
        EXPECT_GT(at_limit, 0);
        EXPECT_GT(inside, 0);
    }
    EXPECT_THROW(fit(calibrate(HeadKind::kHot), GainEstimator::kKlTied, 1e-9), Error);
    EXPECT_THROW(fit(calibrate(HeadKind::kHot), GainEstimator::kKlTied, -1.0), Error);
}

TEST(GainFit, WhatASampleDoesNotDetermineStaysAtTheMeanRms) {
    struct Case {
        const char* name;
        std::int64_t tokens, window;
        bool same_keys;
    };
    for (const Case& c : {Case{"all keys equal", 8, 0, true}, Case{"one token", 1, 0, false},
                          Case{"windows of one", 8, 1, false}}) {
        AttentionConfig config = plain_attention(H, K, D);
        config.window = c.window;
        if (c.same_keys) config.rope.rotary_fraction = 0.0;
        HeadCalibration calibration(config, H, K, {});
        Tensor k = make_heads(HeadKind::kFluctuating, true, {8, c.tokens, K, D}, 1);
        if (c.same_keys) {
            for (std::int64_t i = 0; i < k.numel(); ++i) {
                k.data<float>()[i] = 0.5f + 0.25f * static_cast<float>(i % D);
            }
        }
        calibration.update(make_heads(HeadKind::kFluctuating, false, {8, c.tokens, H, D}, 1), k);
        for (GainEstimator estimator :
             {GainEstimator::kMatchedStd, GainEstimator::kKlTied, GainEstimator::kKlUntied}) {
            const GainFit found = fit(calibration, estimator);
            for (std::int64_t h = 0; h < H; ++h) {
                const HeadFit& head = found.heads[static_cast<std::size_t>(h)];
                for (std::int64_t channel = 0; channel < D; ++channel) {
                    EXPECT_FLOAT_EQ(found.q_gain.data<float>()[h * D + channel],
                                    static_cast<float>(calibration.q_rms(h).mean()))
                        << c.name;
                }
                EXPECT_NE(head.reason, "") << c.name;
                EXPECT_NEAR(head.chosen.held_out.mean, 0.0, 1e-12) << c.name;
                if (estimator != GainEstimator::kMatchedStd) EXPECT_TRUE(head.ridged) << c.name;
            }
        }
    }
}

TEST(GainFit, ChannelsThatAreNeverUsedKeepTheMeanRmsAndTheOthersAreFitted) {
    Tensor q = make_heads(HeadKind::kFluctuating, false, {kSequences, T, H, D}, 1);
    const Tensor k = make_heads(HeadKind::kFluctuating, true, {kSequences, T, K, D}, 1);
    for (std::int64_t i = 0; i < q.numel(); ++i) {
        if (i % 16 == 5) q.data<float>()[i] = 0.0f;  // channels 5 and 21, a pair
    }
    HeadCalibration calibration(plain_attention(H, K, D), H, K, {});
    calibration.update(q, k);
    const GainFit found = fit(calibration, GainEstimator::kKlTied);
    for (std::int64_t h = 0; h < H; ++h) {
        const HeadFit& head = found.heads[static_cast<std::size_t>(h)];
        EXPECT_TRUE(head.ridged);
        EXPECT_FLOAT_EQ(found.q_gain.data<float>()[h * D + 5],
                        static_cast<float>(calibration.q_rms(h).mean()));
        EXPECT_EQ(found.q_gain.data<float>()[h * D + 5], found.q_gain.data<float>()[h * D + 21]);
        EXPECT_LT(head.chosen.held_out.mean, 0.9 * head.mean_rms.held_out.mean);
    }
}

}  // namespace
}  // namespace evenkeel
