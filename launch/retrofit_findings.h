// What `evenkeel retrofit` has measured, and what follows from it: verdicts, tables, the page.
//
// L layers, H query heads.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "attention/retrofit/gain_fit.h"
#include "model/retrofit/retrofit.h"

namespace evenkeel {

// "mean_rms" and so on. Throws kConfig for a name that there is not, naming those that there are.
GainEstimator estimator_of(const std::string& name);
const char* name_of(GainEstimator estimator);

// One query head, with the key head that it reads. Logits and entropies are the kernels', on sequences that no gain
// was made from; divergences, in nats, of the attention to come from the one that was, on the sample's held-out part.
struct HeadFinding {
    GainEstimator estimator = GainEstimator::kMeanRms;
    std::string reason;                           // of HeadFit
    double q_mean = 0.0, k_mean = 0.0;            // rms
    double q_variation = 0.0, k_variation = 0.0;  // its deviation over its mean
    double max_logit_before = 0.0, max_logit_after = 0.0;
    double entropy_before = 0.0, entropy_after = 0.0;
    double kl_mean_rms = 0.0;  // mean, with the mean rms for gains
    double kl_mean = 0.0,
           kl_p99 = 0.0;  // with the gains that were chosen; NaN where logits are capped
    double bound = 0.0;   // that no logit can pass
};

struct LayerFinding {
    bool normed = true;  // otherwise left without a norm, as asked
    std::vector<HeadFinding> heads;
};

enum class Verdict {
    kFine,      // the gains there are, which nobody had to fit, do
    kRefined,   // gains were fitted, nothing is left to do
    kRefine,    // gains want a fit
    kAnneal,    // no gains keep what the layer attends to, and the norm comes in by and by
    kLeave,     // no gains keep what the layer attends to
    kNotAsked,  // left without a norm, as asked
};
struct LayerVerdict {
    Verdict verdict = Verdict::kFine;
    std::string text;  // plain words, with the number that decided
};
// Above this mean divergence of a head (nats) a layer is not fine, and above the other it may be better left alone:
// gains of 1, which cost a model about a nat of loss, have 0.9 to 1.4.
inline constexpr double kFineDivergence = 0.1, kMuchDivergence = 1.0;
// Jumps of the whole model's loss (nats): up to this one nothing is wrong with any layer, whatever its divergence;
// above the other a layer of much divergence is better left alone.
inline constexpr double kFineJump = 0.01, kMuchJump = 0.05;
// loss_jump: of the model with the norm there at once. annealed: it is to come in by and by.
LayerVerdict judge(const LayerFinding& layer, double loss_jump, bool annealed);
const char* name_of(Verdict verdict);

struct RetrofitFindings {
    std::string model, out, data;
    GainEstimator estimator = GainEstimator::kMeanRms;
    std::int64_t anneal_steps = 0;
    double gain_bound = 0.0;
    std::int64_t seq_len = 0, calibration_sequences = 0, held_out_sequences = 0;
    // Of the sequences that no gain was made from, with the norm there at once; at the start of an annealed run.
    double loss_before = 0.0, loss_after = 0.0, loss_at_start = 0.0;
    double gradient_norm_before = 0.0, gradient_norm_after = 0.0;
    std::vector<LayerFinding> layers;
    std::vector<std::string> notes;     // sentences
    std::vector<std::string> commands;  // to type next
};

// The verdict of each layer.
std::vector<LayerVerdict> verdicts_of(const RetrofitFindings& findings);
// What gains the heads of these layers have, those with a norm: "mean_rms x3, kl_tied x1".
std::string text_of_gains(const std::vector<LayerFinding>& layers);
// A note where the bound is loose and nobody has asked for one.
void add_advice(RetrofitFindings& findings);

nlohmann::ordered_json to_json(const RetrofitFindings& findings);
// For a terminal: a line a layer, losses, heads that were refined, what to type next.
std::string to_text(const RetrofitFindings& findings);
// Self-contained HTML. `vega`: as to_html wants it.
std::string to_page(const RetrofitFindings& findings, const std::string& vega);

}  // namespace evenkeel
