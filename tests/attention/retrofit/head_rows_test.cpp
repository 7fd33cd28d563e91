#include "attention/retrofit/head_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/reference_attention.h"
#include "framework/rng.h"
#include "tests/attention/retrofit/head_samples.h"

namespace evenkeel {
namespace {

using testing::HeadKind;
using testing::make_heads;
using testing::plain_attention;

TEST(HeadRows, KeysInSightAreThoseOfTheMask) {
    constexpr std::int64_t T = 11;
    for (bool causal : {true, false}) {
        for (std::int64_t window : {0, 1, 3, 20}) {
            for (const std::vector<std::int32_t>& documents :
                 {std::vector<std::int32_t>{}, {0, 4, 4, 5, 11}}) {
                AttentionConfig config;
                config.causal = causal;
                config.window = window;
                const AttentionMask mask{causal, window, documents};
                for (std::int64_t t = 0; t < T; ++t) {
                    const KeyRange range = visible_keys(config, documents, T, t);
                    for (std::int64_t j = 0; j < T; ++j) {
                        EXPECT_EQ(j >= range.first && j < range.last,
                                  reference_sees(mask, T, T, t, j))
                            << "token " << t << ", key " << j << ", window " << window;
                    }
                }
            }
        }
    }
}

// The divergence of one head's rows by the plain formula.
struct Plain {
    AttentionConfig config;
    std::vector<std::int32_t> documents;
    std::vector<std::int64_t> positions;
    double eps, sink;

    std::vector<double> turned(const std::vector<double>& x,
                               QkNormKind kind,
                               const std::vector<double>& gain) const {
        ReferenceQkNormRope options;
        options.kind = kind;
        options.eps = eps;
        options.gain = gain;
        options.frequencies = rope_frequencies(config.rope, config.head_dim);
        options.magnitude = rope_magnitude(config.rope);
        options.layout = config.rope.layout;
        options.positions = positions;
        const auto T = static_cast<std::int64_t>(positions.size());
        return reference_qk_norm_rope(x, 1, T, 1, config.head_dim, options);
    }

    // ln of the probabilities of row t, the sink's last; of keys that are not in sight -infinity.
    std::vector<double> log_softmax(const std::vector<double>& q,
                                    const std::vector<double>& k,
                                    std::int64_t t) const {
        const auto T = static_cast<std::int64_t>(positions.size());
        const AttentionMask mask{config.causal, config.window, documents};
        std::vector<double> z(static_cast<std::size_t>(T + 1),
                              -std::numeric_limits<double>::infinity());
        z.back() = sink;
        double sum = std::exp(sink);
        for (std::int64_t j = 0; j < T; ++j) {
            if (!reference_sees(mask, T, T, t, j)) continue;
            double logit = 0.0;
            for (std::int64_t c = 0; c < config.head_dim; ++c) {
                logit += q[static_cast<std::size_t>(t * config.head_dim + c)] *
                         k[static_cast<std::size_t>(j * config.head_dim + c)];
            }
            z[static_cast<std::size_t>(j)] = logit * config.logit_scale();
            sum += std::exp(z[static_cast<std::size_t>(j)]);
        }
        for (double& value : z) value -= std::log(sum);
        return z;
    }

    std::vector<double> divergences(const std::vector<double>& q,
                                    const std::vector<double>& k,
                                    const std::vector<double>& q_gain,
                                    double k_gain) const {
        const std::vector<double> k_gains(static_cast<std::size_t>(config.head_dim), k_gain);
        const auto q_was = turned(q, QkNormKind::kNone, {});
        const auto k_was = turned(k, QkNormKind::kNone, {});
        const auto q_is = turned(q, QkNormKind::kRms, q_gain);
        const auto k_is = turned(k, QkNormKind::kRms, k_gains);
        std::vector<double> result;
        for (std::int64_t t = 0; t < static_cast<std::int64_t>(positions.size()); ++t) {
            const auto was = log_softmax(q_was, k_was, t), is = log_softmax(q_is, k_is, t);
            double sum = 0.0;
            for (std::size_t j = 0; j < was.size(); ++j) {
                if (std::isfinite(was[j])) sum += std::exp(was[j]) * (was[j] - is[j]);
            }
            result.push_back(sum);
        }
        return result;
    }
};

struct Case {
    const char* name;
    double rotary = 1.0;
    RopeLayout layout = RopeLayout::kHalfSplit;
    bool causal = true;
    std::int64_t window = 0;
    std::vector<std::int32_t> documents = {};
    double scale = 0.0;
    bool sinks = false, yarn = false;
};

std::vector<double> head_of(const Tensor& rows, std::int64_t b, std::int64_t n) {
    std::vector<double> result;
    for (std::int64_t t = 0; t < rows.size(1); ++t) {
        for (std::int64_t c = 0; c < rows.size(3); ++c) {
            result.push_back(static_cast<double>(
                rows.data<float>()[((b * rows.size(1) + t) * rows.size(2) + n) * rows.size(3) +
                                   c]));
        }
    }
    return result;
}

TEST(HeadRows, DivergencesAreThoseOfThePlainFormulaForEveryMaskAndRotation) {
    const Case cases[] = {
        {.name = "causal"},
        {.name = "interleaved", .layout = RopeLayout::kInterleaved},
        {.name = "partial, half split", .rotary = 0.25},
        {.name = "partial, interleaved", .rotary = 0.5, .layout = RopeLayout::kInterleaved},
        {.name = "no rotation", .rotary = 0.0},
        {.name = "window", .window = 3},
        {.name = "bidirectional", .causal = false},
        {.name = "bidirectional window", .causal = false, .window = 2},
        {.name = "documents", .documents = {0, 3, 4, 9}},
        {.name = "scale", .scale = 0.5},
        {.name = "sinks", .sinks = true},
        {.name = "yarn", .yarn = true},
    };
    constexpr std::int64_t T = 9, H = 4, K = 2, D = 32, kSequences = 4;
    for (const Case& c : cases) {
        Plain plain{plain_attention(H, K, D), c.documents, {}, 1e-3, 0.0};
        plain.config.rope.rotary_fraction = c.rotary;
        plain.config.rope.layout = c.layout;
        plain.config.causal = c.causal;
        plain.config.window = c.window;
        plain.config.softmax_scale = c.scale;
        if (c.yarn) {
            plain.config.rope.scaling = RopeConfig::Scaling::kYarn;
            plain.config.rope.factor = 4.0;
        }
        Tensor sinks;
        if (c.sinks) {
            plain.config.sink = AttentionConfig::Sink::kLearned;
            sinks = Tensor::full({H}, 1.5f, DType::kFloat32);
        }
        Tensor positions = Tensor::uninitialized({1, T}, DType::kInt32);
        for (std::int64_t t = 0; t < T; ++t) {
            plain.positions.push_back(3 * t + 2);
            positions.data<std::int32_t>()[t] = static_cast<std::int32_t>(3 * t + 2);
        }
        HeadCalibration calibration(plain.config, H, K, {.eps = plain.eps}, sinks);
        const Tensor q = make_heads(HeadKind::kFluctuating, false, {kSequences, T, H, D}, 1);
        const Tensor k = make_heads(HeadKind::kFluctuating, true, {kSequences, T, K, D}, 1);
        for (std::int64_t b = 0; b < kSequences; ++b) {
            calibration.update(q.slice(0, b, b + 1), k.slice(0, b, b + 1), positions, c.documents);
        }
        const HeadRows rows(calibration);
        constexpr std::int64_t kHead = 3, kKvHead = 1;
        constexpr double kKeyGain = 1.7;
        plain.sink = calibration.sink(kHead);
        const auto keys = rows.keys(kKvHead, true);
        for (GainTie tie : {GainTie::kPairs, GainTie::kNone}) {
            const FeatureMap map = rows.map(tie);
            const CounterRng rng(9, purpose("gains"));
            std::vector<double> gains, channels;
            for (std::int64_t f = 0; f < map.features(); ++f) {
                gains.push_back(0.2 + rng.uniform(static_cast<std::uint64_t>(f)));
            }
            for (std::int64_t d = 0; d < D; ++d) {
                channels.push_back(gains[static_cast<std::size_t>(map.feature_of(d))]);
            }
            const auto objectives = rows.objectives(kHead, kKeyGain, keys, tie);
            std::vector<double> found[2] = {objectives.fit.judge(gains).divergence,
                                            objectives.held_out.judge(gains).divergence};
            std::vector<double> want[2];
            for (std::int64_t b = 0; b < kSequences; ++b) {
                const auto row = plain.divergences(head_of(q, b, kHead), head_of(k, b, kKvHead),
                                                   channels, kKeyGain);
                auto& to = want[calibration.sample()[static_cast<std::size_t>(b)].held_out ? 1 : 0];
                to.insert(to.end(), row.begin(), row.end());
            }
            for (int part = 0; part < 2; ++part) {
                ASSERT_EQ(found[part].size(), want[part].size()) << c.name;
                for (std::size_t r = 0; r < want[part].size(); ++r) {
                    EXPECT_NEAR(found[part][r], want[part][r], 1e-12 * (1.0 + want[part][r]))
                        << c.name << ", row " << r << (tie == GainTie::kPairs ? ", tied" : "");
                }
            }
        }
    }
}

// The largest difference of logits between keys 3 before the query, over positions, with gains put on
// rotated rows.
double spread_over_positions(const std::vector<double>& gain) {
    constexpr std::int64_t D = 32;
    const CounterRng rng(2, purpose("rows"));
    std::vector<double> q(D), k(D);
    for (std::size_t c = 0; c < D; ++c) {
        q[c] = rng.normal(c);
        k[c] = rng.normal(100 + c);
    }
    ReferenceQkNormRope options;
    options.kind = QkNormKind::kRms;
    options.frequencies = rope_frequencies({}, D);
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (std::int64_t position = 3; position <= 500; ++position) {
        options.positions = {position};
        const auto turned_q = reference_qk_norm_rope(q, 1, 1, 1, D, options);
        options.positions = {position - 3};
        const auto turned_k = reference_qk_norm_rope(k, 1, 1, 1, D, options);
        double logit = 0.0;
        for (std::size_t c = 0; c < D; ++c) logit += gain[c] * turned_q[c] * turned_k[c];
        logit /= std::sqrt(static_cast<double>(D));
        least = std::min(least, logit);
        most = std::max(most, logit);
    }
    return most - least;
}

TEST(HeadRows, TiedGainsMovePastTheRotationAndUntiedOnesDoNot) {
    std::vector<double> tied, untied;
    for (int c = 0; c < 32; ++c) {
        tied.push_back(0.5 + 0.1 * (c % 16));
        untied.push_back(0.5 + 0.1 * (c % 16) * (c < 16 ? 1.0 : -0.3));
    }
    EXPECT_LT(spread_over_positions(tied), 1e-13);
    EXPECT_GT(spread_over_positions(untied), 0.1);
}

}  // namespace
}  // namespace evenkeel
