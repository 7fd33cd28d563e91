// What `evenkeel study retrofit` computes: two plain models, gains for them, and what training goes on to from there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/retrofit/gain_fit.h"
#include "framework/config.h"
#include "launch/studies/points.h"
#include "launch/studies/rig.h"

namespace evenkeel::study {

struct RetrofitRig {
    RigConfig rig;  // sizes, text and seed
    double cool_rate = 3e-3, hot_rate = 1e-2;
    std::int64_t cool_steps = 1000, hot_steps = 600;
    std::int64_t calibration = 32;  // sequences of the training text
    double fine_rate = 1e-3;
    std::int64_t fine_steps = 150, rewarm = 20, anneal = 80, eval_interval = 5;
    double gains_rate = 1e-2;
    std::int64_t gains_steps = 60;
    double bound = 64.0;
    std::int64_t long_steps = 1000;
    void visit_fields(ConfigVisitor& v);
    void validate() const;  // throws kConfig
};

// A plain model that is trained first.
struct BaseModel {
    const char* name;
    double rate;
    std::int64_t steps;
};
std::vector<BaseModel> base_models(const RetrofitRig& rig);

struct Estimator {
    const char* name;
    GainEstimator gains;
};
inline constexpr Estimator kEstimators[] = {{"ones", GainEstimator::kOnes},
                                            {"mean_rms", GainEstimator::kMeanRms},
                                            {"matched_std", GainEstimator::kMatchedStd},
                                            {"kl_tied", GainEstimator::kKlTied},
                                            {"kl_untied", GainEstimator::kKlUntied}};

// How training goes on from a base model.
struct Continuation {
    std::string_view name;
    std::optional<GainEstimator> gains;  // none: no norm, the control
    bool annealed = false;
    bool gains_alone = false;  // trains nothing else
    bool far = false;          // long_steps; with gains, these held to `bound`
};
inline constexpr Continuation kContinuations[] = {
    {"control", {}},
    {"ones", GainEstimator::kOnes},
    {"mean_rms", GainEstimator::kMeanRms},
    {"kl_tied", GainEstimator::kKlTied},
    {"annealed", GainEstimator::kKlTied, true},
    {"annealed_mean_rms", GainEstimator::kMeanRms, true},
    {"alone_ones", GainEstimator::kOnes, false, true},
    {"alone_mean_rms", GainEstimator::kMeanRms, false, true},
    {"alone_kl_tied", GainEstimator::kKlTied, false, true},
    {"far_control", {}, false, false, true},
    {"far_bounded", GainEstimator::kKlTied, false, false, true},
};
// The far ones are of the hot model alone.
bool continues(const Continuation& continuation, const BaseModel& base);

// Trains into OUT/models/NAME; an interrupted one goes on. Numbers: loss, max_logit (largest in any step),
// last_max_logit. Curve: max_logit.
PointResult train_base(const RetrofitRig& rig, const BaseModel& base, const std::string& out);

// Numbers: loss (validation), max_logit (over the calibration batches), cv_q, cv_k (means over heads),
// cv_q_max, cv_k_max, and for each estimator ESTIMATOR.loss, .kl (of held-out rows, mean over heads), .kl_worst (head),
// .max_logit, .bound, .grad_norm; grad_norm of the model itself. The same text for all but the losses.
PointResult measure_gains(const RetrofitRig& rig, const BaseModel& base, const std::string& out);

// Numbers: loss (validation, at the end), max_logit (largest in any step), last_max_logit, bound (largest of any
// head at the end), grad_norm (first step). Curves: validation, max_logit, bound.
PointResult continue_training(const RetrofitRig& rig,
                              const BaseModel& base,
                              const Continuation& continuation,
                              const std::string& out);

}  // namespace evenkeel::study
