// A calibration sample as the KL fit sees it: a head's rows normalised, turned and cut into features, beside the
// logits that they have had. With half the channels of the rotary part first and their partners second,
// whatever the layout, features are
//   tied    [R/2 pairs, D - R channels that do not turn]: a gain each
//   untied  [R/2 first channels of the pairs, R/2 second ones, D - R that do not turn]
// of logits with q gain g_f and the k gain that is given, the same for all channels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/retrofit/calibration.h"
#include "attention/retrofit/kl_objective.h"

namespace evenkeel {

// Which gains are free.
enum class GainTie { kPairs, kNone };

// Where features are in a head's channels.
struct FeatureMap {
    GainTie tie = GainTie::kPairs;
    std::int64_t pairs = 0;  // R/2
    std::int64_t head_dim = 0;
    RopeLayout layout = RopeLayout::kHalfSplit;

    std::int64_t features() const {
        return head_dim - (tie == GainTie::kPairs ? pairs : std::int64_t{0});
    }
    // First and second channel of pair p.
    std::int64_t first(std::int64_t p) const {
        return layout == RopeLayout::kHalfSplit ? p : 2 * p;
    }
    std::int64_t second(std::int64_t p) const {
        return layout == RopeLayout::kHalfSplit ? p + pairs : 2 * p + 1;
    }
    // The feature that channel c's gain belongs to.
    std::int64_t feature_of(std::int64_t c) const;
};

// The keys of one sequence for one key head, in both forms.
struct HeadKeys {
    std::shared_ptr<const KlKeys> tied, untied;
    std::vector<double> rms;  // [T]
};

// Cuts one layer's sample into objectives, head by head.
class HeadRows {
  public:
    // The calibration must outlive this.
    explicit HeadRows(const HeadCalibration& calibration);

    FeatureMap map(GainTie tie) const;
    // Key head's keys of all sequences; untied ones only if wanted.
    std::vector<HeadKeys> keys(std::int64_t kv_head, bool untied) const;

    struct Objectives {
        KlObjective fit, held_out;
        // Sums over the rows to fit on of the squares of logits less their row's mean: as they were, and with gains
        // of 1 on q.
        double squares_before = 0.0, squares_after = 0.0;
        std::int64_t logits = 0;  // in those sums
    };
    // Of query head `head`, k gains being k_gain for all channels.
    Objectives objectives(std::int64_t head,
                          double k_gain,
                          const std::vector<HeadKeys>& keys,
                          GainTie tie) const;

  private:
    struct Prepared {
        KlObjective::Row row;
        double squares_before = 0.0, squares_after = 0.0;
    };
    // Row r of sequence s, for `objective`.
    Prepared prepare(const KlObjective& objective,
                     std::int64_t head,
                     double k_gain,
                     const HeadKeys& keys,
                     GainTie tie,
                     const CalibrationSequence& sequence,
                     std::size_t r) const;
    // Cosines, then sines of the pairs at `position`, times YaRN's magnitude.
    void turn(std::int32_t position, std::vector<double>& angles) const;

    const HeadCalibration& calibration_;
    std::vector<SampledSequence> sequences_;
    std::vector<double> frequencies_;
    double magnitude_;
};

// The keys that token t of T sees, first .. last - 1 (AttentionMask's words): never none.
struct KeyRange {
    std::int64_t first, last;
};
KeyRange visible_keys(const AttentionConfig& config,
                      const std::vector<std::int32_t>& documents,
                      std::int64_t T,
                      std::int64_t t);

}  // namespace evenkeel
