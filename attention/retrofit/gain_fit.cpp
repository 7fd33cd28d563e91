#include "attention/retrofit/gain_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "attention/logit_bound.h"
#include "attention/retrofit/box_newton.h"
#include "attention/retrofit/head_rows.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "fit_gains";
// Mean squares of logits below this are rounding.
constexpr double kNoSpread = 1e-16;

double as_stored(double value) { return static_cast<double>(static_cast<float>(value)); }

// The largest number of the storage type that is at most `value` and the limit.
float stored_below(double value, double limit) {
    const auto rounded = static_cast<float>(std::min(value, limit));
    return static_cast<double>(rounded) > limit ? std::nextafter(rounded, 0.0f) : rounded;
}

std::string digits(double value) {
    std::ostringstream text;
    text.precision(3);
    text << value;
    return text.str();
}

void add_sentence(std::string& reason, const std::string& sentence) {
    if (!reason.empty()) reason += "; ";
    reason += sentence;
}

RowDivergence summary(std::vector<double> divergence) {
    RowDivergence result;
    result.rows = static_cast<std::int64_t>(divergence.size());
    if (divergence.empty()) {
        result.mean = result.p99 = std::numeric_limits<double>::quiet_NaN();
        return result;
    }
    for (double value : divergence) result.mean += value;
    result.mean /= static_cast<double>(divergence.size());
    // Nearest rank.
    const auto rank =
        static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(divergence.size())));
    const auto at = divergence.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(divergence.begin(), at, divergence.end());
    result.p99 = *at;
    return result;
}

double mean_entropy(const KlObjective::Judgement& a, const KlObjective::Judgement& b) {
    const std::int64_t rows = a.entropy_rows + b.entropy_rows;
    return rows == 0 ? 0.0 : (a.entropy_sum + b.entropy_sum) / static_cast<double>(rows);
}

// Fits the heads of one layer.
class LayerFit {
  public:
    LayerFit(const HeadCalibration& calibration, const GainFitOptions& options)
        : calibration_(calibration),
          options_(options),
          rows_(calibration),
          H_(calibration.heads()),
          K_(calibration.kv_heads()),
          D_(calibration.config().head_dim) {
        result_.q_gain = Tensor::uninitialized({H_, D_}, DType::kFloat32);
        result_.k_gain = Tensor::uninitialized({K_, D_}, DType::kFloat32);
        result_.heads.resize(static_cast<std::size_t>(H_));
    }

    GainFit run() {
        for (std::int64_t kv_head = 0; kv_head < K_; ++kv_head) {
            const double mean =
                as_stored(std::max(calibration_.k_rms(kv_head).mean(), kSmallestGain));
            const double gain = options_.estimator == GainEstimator::kOnes ? 1.0 : mean;
            float* row = result_.k_gain.data<float>() + kv_head * D_;
            std::fill(row, row + D_, static_cast<float>(gain));
            const auto keys = rows_.keys(kv_head, options_.estimator == GainEstimator::kKlUntied);
            for (std::int64_t h = kv_head * (H_ / K_); h < (kv_head + 1) * (H_ / K_); ++h) {
                fit_head(h, kv_head, gain, mean, keys);
            }
        }
        bound_heads();
        return std::move(result_);
    }

  private:
    using Objectives = HeadRows::Objectives;

    void fit_head(std::int64_t h,
                  std::int64_t kv_head,
                  double k_gain,
                  double k_mean,
                  const std::vector<HeadKeys>& keys) {
        HeadFit& head = result_.heads[static_cast<std::size_t>(h)];
        const RunningMoments& q = calibration_.q_rms(h);
        const RunningMoments& k = calibration_.k_rms(kv_head);
        head.q_mean = q.mean();
        head.k_mean = k.mean();
        head.q_variation = q.variation();
        head.k_variation = k.variation();
        const double mean = std::max(q.mean(), kSmallestGain);

        const Objectives tied = rows_.objectives(h, k_gain, keys, GainTie::kPairs);
        const auto fit_before = tied.fit.before(), held_before = tied.held_out.before();
        head.max_logit = std::max(
            {fit_before.max_logit, held_before.max_logit, calibration_.observed_max_logit(h)});
        head.entropy = mean_entropy(fit_before, held_before);
        const FeatureMap tied_map = rows_.map(GainTie::kPairs);
        // With k gains of 1 the mean rms of the keys is q's to carry.
        const std::vector<double> mean_gains(static_cast<std::size_t>(tied_map.features()),
                                             as_stored(mean) * (k_mean / k_gain));
        head.mean_rms = judge(tied, mean_gains);

        head.estimator = options_.estimator;
        if (options_.estimator == GainEstimator::kMeanRms && options_.refine) {
            const std::string reason =
                refine_reason(head.q_variation, head.k_variation, head.max_logit, options_);
            if (!reason.empty()) head.estimator = GainEstimator::kKlTied;
            head.reason = reason;
        }
        switch (head.estimator) {
            case GainEstimator::kOnes:
                set_scalar(h, head, tied, 1.0, k_gain);
                break;
            case GainEstimator::kMeanRms:
                set_scalar(h, head, tied, mean, k_gain);
                break;
            case GainEstimator::kMatchedStd:
                set_scalar(h, head, tied, matched(head, tied, mean), k_gain);
                break;
            case GainEstimator::kKlTied: {
                const auto best = minimize(head, tied.fit, tied_map, mean_gains, mean, k_gain);
                set_scalar(h, head, tied, mean, k_gain);
                const double without = head.chosen.held_out.mean;
                set(h, head, tied, tied_map, best, k_gain);
                if (options_.estimator == GainEstimator::kKlTied) break;
                // Nobody has asked for this fit: it stays where it is worth it.
                if (head.chosen.held_out.mean <= without * (1.0 + 1e-9)) break;
                add_sentence(head.reason, "gains fitted to the sample do worse on held-out rows, " +
                                              digits(head.chosen.held_out.mean) + " against " +
                                              digits(without) + ": the mean rms stays");
                head.estimator = GainEstimator::kMeanRms;
                set_scalar(h, head, tied, mean, k_gain);
                break;
            }
            case GainEstimator::kKlUntied: {
                // From the best tied gains, which are among the untied ones: no worse than those.
                const auto best = minimize(head, tied.fit, tied_map, mean_gains, mean, k_gain);
                const FeatureMap map = rows_.map(GainTie::kNone);
                std::vector<double> start(static_cast<std::size_t>(map.features()));
                for (std::int64_t c = 0; c < D_; ++c) {
                    start[static_cast<std::size_t>(map.feature_of(c))] =
                        best[static_cast<std::size_t>(tied_map.feature_of(c))];
                }
                const Objectives untied = rows_.objectives(h, k_gain, keys, GainTie::kNone);
                set(h, head, untied, map, minimize(head, untied.fit, map, start, mean, k_gain),
                    k_gain);
                break;
            }
        }
    }

    GainJudgement judge(const Objectives& objectives, const std::vector<double>& gains) const {
        const auto fit = objectives.fit.judge(gains), held_out = objectives.held_out.judge(gains);
        GainJudgement judgement;
        judgement.fit = summary(fit.divergence);
        judgement.held_out = summary(held_out.divergence);
        judgement.max_logit = std::max(fit.max_logit, held_out.max_logit);
        judgement.entropy = mean_entropy(fit, held_out);
        return judgement;
    }

    // The gain that makes the spread of logits what it was.
    double matched(HeadFit& head, const Objectives& tied, double mean) const {
        const double least = kNoSpread * static_cast<double>(tied.logits);
        if (tied.squares_before > least && tied.squares_after > least) {
            return std::max(std::sqrt(tied.squares_before / tied.squares_after), kSmallestGain);
        }
        add_sentence(head.reason, "logits of a row do not differ, there is no spread to match");
        return mean;
    }

    // The q gain of channels that turn (or not) at which the bound is reached; infinite without one.
    double limit(bool turns, double k_gain) const {
        if (options_.bound == 0.0) return std::numeric_limits<double>::infinity();
        const double turned =
            turns ? std::max(1.0, rope_magnitude(calibration_.config().rope)) : 1.0;
        const double limit = options_.bound / (calibration_.config().logit_scale() *
                                               static_cast<double>(D_) * k_gain * turned * turned);
        EVENKEEL_CHECK(limit > kSmallestGain, kOp, "bound: got ", options_.bound,
                       ", too small for any gain; a head's mean rms of keys is ", k_gain);
        return limit;
    }

    std::vector<double> limits(const FeatureMap& map, double k_gain) const {
        std::vector<double> result(static_cast<std::size_t>(map.features()));
        for (std::int64_t c = 0; c < D_; ++c) {
            result[static_cast<std::size_t>(map.feature_of(c))] = limit(c < 2 * map.pairs, k_gain);
        }
        return result;
    }

    std::vector<double> minimize(HeadFit& head,
                                 const KlObjective& objective,
                                 const FeatureMap& map,
                                 const std::vector<double>& start,
                                 double mean,
                                 double k_gain) const {
        const std::vector<double> scale(start.size(), mean);
        const std::vector<double> upper = limits(map, k_gain);
        std::vector<double> lower(start.size());
        for (std::size_t f = 0; f < lower.size(); ++f) {
            lower[f] = std::min(std::max(options_.least_share * mean, kSmallestGain), upper[f]);
        }
        const BoxNewtonResult found = minimize_in_box(
            [&](std::span<const double> g, double* gradient, double* hessian) {
                return objective.evaluate(g, gradient, hessian);
            },
            start, scale, lower, upper, {.ridge = options_.ridge});
        head.iterations += found.iterations;
        if (found.ridged && !head.ridged) {
            add_sentence(
                head.reason,
                "the sample does not determine all gains, which stay near where they began");
        }
        head.ridged = head.ridged || found.ridged;
        if (!found.converged) {
            add_sentence(head.reason,
                         concat("the fit had not settled after ", found.iterations, " steps"));
        }
        return found.x;
    }

    void set_scalar(
        std::int64_t h, HeadFit& head, const Objectives& tied, double gain, double k_gain) {
        const FeatureMap map = rows_.map(GainTie::kPairs);
        set(h, head, tied, map, std::vector<double>(static_cast<std::size_t>(map.features()), gain),
            k_gain);
    }

    // Stores gains of features, held below the bound, and judges them as they are stored.
    void set(std::int64_t h,
             HeadFit& head,
             const Objectives& objectives,
             const FeatureMap& map,
             std::vector<double> gains,
             double k_gain) {
        const std::vector<double> most = limits(map, k_gain);
        head.at_bound = false;
        for (std::size_t f = 0; f < gains.size(); ++f) {
            const float stored = stored_below(std::max(gains[f], kSmallestGain), most[f]);
            if (gains[f] >= most[f] * (1.0 - 1e-9)) head.at_bound = true;
            gains[f] = static_cast<double>(stored);
        }
        float* row = result_.q_gain.data<float>() + h * D_;
        for (std::int64_t c = 0; c < D_; ++c) {
            row[c] = static_cast<float>(gains[static_cast<std::size_t>(map.feature_of(c))]);
        }
        head.chosen = judge(objectives, gains);
    }

    // The bounds on logits of all heads, with the gains that they have and with the mean rms.
    void bound_heads() {
        AttentionConfig config = calibration_.config();
        config.softmax_scale = config.logit_scale();
        config.qk_norm = QkNormConfig{};
        const auto chosen = logit_bounds(config, result_.q_gain, result_.k_gain, H_, K_);
        Tensor q = Tensor::uninitialized({H_, D_}, DType::kFloat32);
        Tensor k = Tensor::uninitialized({K_, D_}, DType::kFloat32);
        for (std::int64_t h = 0; h < H_; ++h) {
            q.slice(0, h, h + 1).fill(static_cast<float>(calibration_.q_rms(h).mean()));
        }
        for (std::int64_t g = 0; g < K_; ++g) {
            k.slice(0, g, g + 1).fill(static_cast<float>(calibration_.k_rms(g).mean()));
        }
        const auto mean = logit_bounds(config, q, k, H_, K_);
        for (std::size_t h = 0; h < result_.heads.size(); ++h) {
            result_.heads[h].chosen.bound = chosen[h];
            result_.heads[h].mean_rms.bound = mean[h];
        }
    }

    const HeadCalibration& calibration_;
    const GainFitOptions& options_;
    HeadRows rows_;
    std::int64_t H_, K_, D_;
    GainFit result_;
};

}  // namespace

std::string refine_reason(double q_variation,
                          double k_variation,
                          double max_logit,
                          const GainFitOptions& options) {
    std::string reason;
    const auto add = [&](const char* what, double value, double limit) {
        if (value > limit) reason += concat(reason.empty() ? "" : ", ", what, " ", digits(value));
    };
    add("CV q", q_variation, options.refine_variation);
    add(reason.empty() ? "CV k" : "k", k_variation, options.refine_variation);
    if (!reason.empty()) reason += concat(" (limit ", options.refine_variation, ")");
    if (max_logit > options.refine_max_logit) {
        reason += concat(reason.empty() ? "" : ", ", "largest logit ", digits(max_logit),
                         " (limit ", options.refine_max_logit, ")");
    }
    return reason;
}

GainFit fit_gains(const HeadCalibration& calibration, const GainFitOptions& options) {
    EVENKEEL_CHECK(calibration.sequences() >= 2, kOp, "too little data: got ",
                   calibration.sequences(), " sequences, want 2 or more");
    EVENKEEL_CHECK(std::isfinite(options.bound) && options.bound >= 0.0, kOp, "bound: got ",
                   options.bound, ", want 0 (none) or a positive number");
    return LayerFit(calibration, options).run();
}

}  // namespace evenkeel
