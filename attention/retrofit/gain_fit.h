// Gains of a QK-norm put into a trained attention layer: chosen so that attention stays as near as it can to what
// it was. With rho_i and kappa_j the rms of query i and key j, c_ij the logit of their normalised rows, the
// layer has had logits rho_i kappa_j c_ij, and will have gq gk c_ij: what is lost is the fluctuation of the norms.
// Derivations: docs/math.md, "Gains for a trained model".
//
// H/P query and K/P key heads of this rank, D head width. All gains are those of kRms with scope head, before
// rotation, [H/P, D] and [K/P, D]: any order of norm and rotation may store pair-tied ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/gain_rule.h"
#include "attention/retrofit/calibration.h"
#include "framework/tensor.h"

namespace evenkeel {

enum class GainEstimator {
    kOnes,     // gains of 1
    kMeanRms,  // gq = mean of rho, gk = mean of kappa
    kMatchedStd,  // gq so that logits less their row's mean have the deviation they had; gk = mean of kappa
    // gq that minimise the mean Kullback-Leibler divergence of the attention that was from the one to come,
    // over the rows that were kept, gk = mean of kappa:
    kKlTied,    // one gain for the two channels that turn together, one for each that does not turn
    kKlUntied,  // a gain for each channel
};

struct GainFitOptions {
    GainEstimator estimator = GainEstimator::kMeanRms;
    // kMeanRms only: heads for which refine_reason finds one get kKlTied, unless that does worse on held-out rows.
    bool refine = true;
    double refine_variation = 0.15;
    double refine_max_logit = 50.0;
    // Fitted gains are held to where the fit began by this share of the curvature of the gain that matters most
    // (BoxNewtonOptions::ridge): those that hardly matter then do not follow the noise of the last digits, which
    // differs between tensor-parallel sizes.
    double ridge = 1e-3;
    // Fitted gains are at least this share of the head's mean rms. One that is nearly nothing says hardly less, but while a
    // norm comes in its power lambda has a slope of lambda g^(lambda-1), in which all other gradients would drown.
    double least_share = 1.0 / 32.0;
    // No logit of the new layer may be larger (logit_bound.h); q gains are held below what that takes. 0: none.
    double bound = 0.0;
};

// The divergence of rows in nats, the new attention from the one that was: sum over keys (and the sink) of
// p ln(p / p'). p99: 99 of 100 rows have at most this. NaN if there are no rows.
struct RowDivergence {
    double mean = 0.0, p99 = 0.0;
    std::int64_t rows = 0;
};

// One choice of gains for one head, judged on the sample.
struct GainJudgement {
    RowDivergence fit, held_out;  // on the sequences that fits see, and on those that they do not
    double max_logit = 0.0;       // largest magnitude, over both
    double entropy = 0.0;         // mean over rows that see two keys or more, over both
    double bound = 0.0;           // that no logit can pass, whatever the weights (logit_bound.h)
};

struct HeadFit {
    GainEstimator estimator = GainEstimator::kMeanRms;  // that the gains are of
    std::string
        reason;  // why a head was refined, and what a fit could not do; empty: nothing to say
    double q_mean = 0.0, k_mean = 0.0;            // mean rms, over all tokens
    double q_variation = 0.0, k_variation = 0.0;  // deviation over mean of the rms, over all tokens
    double max_logit =
        0.0;  // before: largest magnitude in the sample, or observed over all data if larger
    double entropy = 0.0;  // before: over the sample
    GainJudgement mean_rms, chosen;
    int iterations = 0;     // Newton steps
    bool at_bound = false;  // some gain is as large as the bound lets it be
    bool ridged = false;    // the sample does not determine all gains: those stay near the mean rms
};

struct GainFit {
    Tensor q_gain, k_gain;       // [H/P, D], [K/P, D] fp32, on the CPU; positive
    std::vector<HeadFit> heads;  // [H/P]
};

// Why a head needs more than the mean rms, from its statistics: coefficients of variation above
// options.refine_variation, a largest logit above options.refine_max_logit. Empty: it does not.
std::string refine_reason(double q_variation,
                          double k_variation,
                          double max_logit,
                          const GainFitOptions& options);

// Gains for all heads of this rank. Deterministic: a head's gains do not depend on the other heads or on the number
// of threads. Where P > K ranks share a key head, their k gains agree if their k did, to the bit.
// Throws kInvalidArgument, with "too little data", before two sequences have been kept.
GainFit fit_gains(const HeadCalibration& calibration, const GainFitOptions& options);

// The least gain that fits give: annealing takes powers of gains, in which smaller ones count as this.
inline constexpr double kSmallestGain = kLeastGain;

}  // namespace evenkeel
