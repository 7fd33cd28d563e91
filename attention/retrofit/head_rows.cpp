#include "attention/retrofit/head_rows.h"

#include <algorithm>
#include <cmath>

#include "attention/retrofit/kl_rows.h"
#include "framework/error.h"
#include "framework/thread_errors.h"

namespace evenkeel {
namespace {

// Below this, starting threads costs more than it saves.
constexpr std::size_t kParallelLogits = 1 << 15, kParallelFloats = 1 << 18;

// x normalised by its rms, which is returned.
double normalize(const float* from, double eps, std::vector<double>& x) {
    double sum = 0.0;
    for (std::size_t c = 0; c < x.size(); ++c) {
        x[c] = static_cast<double>(from[c]);
        sum += x[c] * x[c];
    }
    const double rms = std::sqrt(sum / static_cast<double>(x.size()) + eps);
    if (rms > 0.0) {
        for (double& value : x) value /= rms;
    }
    return rms;
}

// Writes a normalised row's pairs, turned: the first channels and those that do not turn to `first`, the second ones to
// `second`.
void split_pairs(const FeatureMap& map,
                 const std::vector<double>& x,
                 const std::vector<double>& angles,
                 double* first,
                 double* second) {
    for (std::int64_t p = 0; p < map.pairs; ++p) {
        const double cos = angles[static_cast<std::size_t>(p)];
        const double sin = angles[static_cast<std::size_t>(map.pairs + p)];
        const double a = x[static_cast<std::size_t>(map.first(p))];
        const double b = x[static_cast<std::size_t>(map.second(p))];
        first[p] = a * cos - b * sin;
        second[p] = b * cos + a * sin;
    }
    for (std::int64_t c = 2 * map.pairs; c < map.head_dim; ++c) {
        first[c - map.pairs] = x[static_cast<std::size_t>(c)];
    }
}

// A query's weights of [c, e], where a channel's gain is its own: R^T k by the channel of q.
void untied_query(const FeatureMap& map,
                  const std::vector<double>& x,
                  const std::vector<double>& angles,
                  double* a,
                  double* b) {
    for (std::int64_t p = 0; p < map.pairs; ++p) {
        const double cos = angles[static_cast<std::size_t>(p)];
        const double sin = angles[static_cast<std::size_t>(map.pairs + p)];
        const double first = x[static_cast<std::size_t>(map.first(p))];
        const double second = x[static_cast<std::size_t>(map.second(p))];
        a[p] = first * cos;
        b[p] = first * sin;
        a[map.pairs + p] = second * cos;
        b[map.pairs + p] = -second * sin;
    }
    for (std::int64_t c = 2 * map.pairs; c < map.head_dim; ++c) {
        a[c] = x[static_cast<std::size_t>(c)];
    }
}

// The tied form's [c, e] as the untied form has it: [first, second, rest], [second, first, 0].
KlKeys untie(const FeatureMap& map, const KlKeys& tied, std::int64_t count) {
    const std::int64_t R2 = map.pairs, rest = map.head_dim - 2 * R2;
    const std::int64_t narrow = kl_width(R2 + rest), wide = kl_width(map.head_dim);
    KlKeys keys{std::vector<double>(static_cast<std::size_t>(count * 2 * wide), 0.0)};
    for (std::int64_t j = 0; j < count; ++j) {
        const double* first = tied.rows.data() + j * 2 * narrow;
        const double* second = first + narrow;
        double* c = keys.rows.data() + j * 2 * wide;
        double* e = c + wide;
        std::copy(first, first + R2, c);
        std::copy(second, second + R2, c + R2);
        std::copy(first + R2, first + R2 + rest, c + 2 * R2);
        std::copy(second, second + R2, e);
        std::copy(first, first + R2, e + R2);
    }
    return keys;
}

double centred_squares(const std::vector<double>& x) {
    double mean = 0.0, squares = 0.0;
    for (double value : x) mean += value / static_cast<double>(x.size());
    for (double value : x) squares += (value - mean) * (value - mean);
    return squares;
}

}  // namespace

std::int64_t FeatureMap::feature_of(std::int64_t c) const {
    if (c >= 2 * pairs) return tie == GainTie::kPairs ? c - pairs : c;
    const bool half = layout == RopeLayout::kHalfSplit;
    const std::int64_t pair = half ? c % pairs : c / 2;
    const bool is_second = half ? c >= pairs : c % 2 == 1;
    return pair + (tie == GainTie::kNone && is_second ? pairs : std::int64_t{0});
}

KeyRange visible_keys(const AttentionConfig& config,
                      const std::vector<std::int32_t>& documents,
                      std::int64_t T,
                      std::int64_t t) {
    KeyRange range{0, T};
    if (!documents.empty()) {
        const auto end = std::upper_bound(documents.begin(), documents.end(), t);
        range = {*(end - 1), *end};
    }
    if (config.causal) range.last = t + 1;
    if (config.window > 0) {
        range.first = std::max(range.first, t - config.window + 1);
        range.last = std::min(range.last, t + config.window);
    }
    return range;
}

HeadRows::HeadRows(const HeadCalibration& calibration)
    : calibration_(calibration),
      sequences_(calibration.sample()),
      frequencies_(rope_frequencies(calibration.config().rope, calibration.config().head_dim)),
      magnitude_(rope_magnitude(calibration.config().rope)) {}

FeatureMap HeadRows::map(GainTie tie) const {
    const AttentionConfig& config = calibration_.config();
    return {tie, static_cast<std::int64_t>(frequencies_.size()), config.head_dim,
            config.rope.layout};
}

void HeadRows::turn(std::int32_t position, std::vector<double>& angles) const {
    const std::size_t pairs = frequencies_.size();
    angles.resize(2 * pairs);
    for (std::size_t p = 0; p < pairs; ++p) {
        const double angle = static_cast<double>(position) * frequencies_[p];
        angles[p] = magnitude_ * std::cos(angle);
        angles[pairs + p] = magnitude_ * std::sin(angle);
    }
}

std::vector<HeadKeys> HeadRows::keys(std::int64_t kv_head, bool untied) const {
    const FeatureMap map = this->map(GainTie::kPairs);
    const std::int64_t D = map.head_dim, W = kl_width(map.features());
    std::vector<HeadKeys> all(sequences_.size());
    const bool large = !sequences_.empty() &&
                       sequences_.size() * sequences_[0].sequence->k.size() >= kParallelFloats;
    const auto fill = [&](std::size_t s) {
        const CalibrationSequence& sequence = *sequences_[s].sequence;
        const auto T = static_cast<std::int64_t>(sequence.positions.size());
        KlKeys keys{std::vector<double>(static_cast<std::size_t>(T * 2 * W), 0.0)};
        std::vector<double> x(static_cast<std::size_t>(D)), angles;
        for (std::int64_t t = 0; t < T; ++t) {
            const float* from = sequence.k.data() + (t * calibration_.kv_heads() + kv_head) * D;
            all[s].rms.push_back(normalize(from, calibration_.options().eps, x));
            turn(sequence.positions[static_cast<std::size_t>(t)], angles);
            double* row = keys.rows.data() + t * 2 * W;
            split_pairs(map, x, angles, row, row + W);
        }
        if (untied) all[s].untied = std::make_shared<const KlKeys>(untie(map, keys, T));
        all[s].tied = std::make_shared<const KlKeys>(std::move(keys));
    };
    ThreadErrors errors;
#pragma omp parallel for schedule(dynamic) if (large)
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
        errors.keep([&] { fill(s); });
    }
    errors.rethrow();
    return all;
}

HeadRows::Prepared HeadRows::prepare(const KlObjective& objective,
                                     std::int64_t head,
                                     double k_gain,
                                     const HeadKeys& keys,
                                     GainTie tie,
                                     const CalibrationSequence& sequence,
                                     std::size_t r) const {
    const FeatureMap pairs = map(GainTie::kPairs), own = map(tie);
    const AttentionConfig& config = calibration_.config();
    const double scale = config.logit_scale();
    const auto T = static_cast<std::int64_t>(sequence.positions.size());
    const std::int64_t t = sequence.rows[r], D = own.head_dim;
    const float* from =
        sequence.q.data() + (static_cast<std::int64_t>(r) * calibration_.heads() + head) * D;
    std::vector<double> x(static_cast<std::size_t>(D)), angles;
    const double rms = normalize(from, calibration_.options().eps, x);
    turn(sequence.positions[static_cast<std::size_t>(t)], angles);

    // Logits of the normalised rows, and what they have been.
    const std::int64_t width = kl_width(pairs.features());
    std::vector<double> ab(static_cast<std::size_t>(2 * width), 0.0);
    split_pairs(pairs, x, angles, ab.data(), ab.data() + width);
    const KeyRange range = visible_keys(config, sequence.documents, T, t);
    std::vector<double> after(static_cast<std::size_t>(range.last - range.first));
    EVENKEEL_FOR_CURRENT_ISA(kl_dots)
    (ab.data(), keys.tied->rows.data() + range.first * 2 * width, range.last - range.first,
     2 * width, after.data());
    std::vector<double> before(after.size());
    for (std::size_t j = 0; j < after.size(); ++j) {
        after[j] *= scale;
        before[j] = rms * keys.rms[static_cast<std::size_t>(range.first) + j] * after[j];
    }

    if (tie == GainTie::kNone) {
        const std::int64_t wide = objective.width();
        ab.assign(static_cast<std::size_t>(2 * wide), 0.0);
        untied_query(own, x, angles, ab.data(), ab.data() + wide);
    }
    for (double& weight : ab) weight *= scale * k_gain;
    Prepared prepared;
    prepared.row = objective.make_row(tie == GainTie::kPairs ? keys.tied : keys.untied, range.first,
                                      std::move(ab), before, calibration_.sink(head));
    prepared.squares_before = centred_squares(before);
    prepared.squares_after = k_gain * k_gain * centred_squares(after);
    return prepared;
}

HeadRows::Objectives HeadRows::objectives(std::int64_t head,
                                          double k_gain,
                                          const std::vector<HeadKeys>& keys,
                                          GainTie tie) const {
    const std::int64_t features = map(tie).features();
    Objectives result{KlObjective(features), KlObjective(features)};
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
        const CalibrationSequence& sequence = *sequences_[s].sequence;
        std::vector<Prepared> prepared(sequence.rows.size());
        const bool large = prepared.size() * sequence.positions.size() >= kParallelLogits;
        ThreadErrors errors;
#pragma omp parallel for schedule(dynamic, 16) if (large)
        for (std::size_t r = 0; r < prepared.size(); ++r) {
            errors.keep([&] {
                prepared[r] = prepare(result.fit, head, k_gain, keys[s], tie, sequence, r);
            });
        }
        errors.rethrow();
        for (Prepared& row : prepared) {
            if (!sequences_[s].held_out) {
                result.squares_before += row.squares_before;
                result.squares_after += row.squares_after;
                result.logits += row.row.count;
            }
            (sequences_[s].held_out ? result.held_out : result.fit).add(std::move(row.row));
        }
    }
    return result;
}

}  // namespace evenkeel
