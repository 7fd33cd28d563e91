// QK-norm for a model that was trained without: what its heads do (measure_heads), what it becomes
// (retrofitted_config), its weights with gains beside them (retrofit_weights) and the
// checkpoint of these (write_retrofitted). Gains themselves are estimated in attention/retrofit/. (docs/retrofit.md)
//
// B batch, T positions, H query heads, K key/value heads, D head width, L layers, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/retrofit/calibration.h"
#include "framework/data/dataset.h"
#include "framework/storage/tensor_source.h"
#include "model/language_model.h"

namespace evenkeel {

struct RetrofitOptions {
    std::string layers;             // "0,3-5": those that get the norm; "": all
    std::int64_t anneal_steps = 0;  // over which it comes in; 0: at once
    double gain_bound = 0.0;        // what no logit may exceed in training; 0: no bound
};

// Throws kConfig with a sentence that says why a model can't be given QK-norm: it has it already, or is being
// given it, or has something in its place.
void check_retrofit(const ModelConfig& config);
// The same model with kind rms, scope head, a gain for each head and channel, the scale of its logits as it is.
// Checks both.
ModelConfig retrofitted_config(const ModelConfig& config, const RetrofitOptions& options);

// Throws kNonFinite naming the first weight, in the order of parameters, that is not finite on any rank.
// Collective.
void check_finite_weights(const ProcessGrid& grid,
                          LanguageModel& model,
                          const char* op = "retrofit");

// What heads do on some batches: [L, H], fp32.
struct HeadMeasurements {
    double loss = 0.0;  // mean over tokens
    MetricTable max_logit, entropy;
};
// Forward passes; `also` sees every layer's attention. max_logit is the largest before a softcap, entropy the
// mean over rows. The same on all ranks. Collective.
HeadMeasurements measure_heads(const ProcessGrid& grid,
                               LanguageModel& model,
                               std::span<const Batch> batches,
                               const LanguageModel::AttentionObserver& also = {});
// What gains are made of: a HeadCalibration a layer, this rank's heads, and what the heads do on the same batches.
struct ModelCalibration {
    HeadMeasurements measured;
    std::vector<HeadCalibration> layers;
};
// Forward passes of a model without QK-norm, in which nothing but these is kept. Where logits are capped, layers
// are calibrated as if they were not: what HeadCalibration says of queries and keys is true all the same, what is
// fitted on its sample is not. Collective.
ModelCalibration calibrate(const ProcessGrid& grid,
                           LanguageModel& model,
                           std::span<const Batch> batches,
                           const CalibrationOptions& options = {});
// Norm of the gradient of the batches' mean loss; moves nothing but gradients. Collective.
double gradient_norm_of(LanguageModel& model, std::span<const Batch> batches);

// This rank's gains of a layer: q [H/P, D], k [K/P, D], fp32 on the CPU; undefined in a layer without norm.
struct LayerGains {
    Tensor q, k;
};
// Gives `to`, a model of retrofitted_config on the same grid, the weights and moments of `from`, bit for bit where
// both store them alike, and these gains (moments zero), one a layer.
void retrofit_weights(LanguageModel& from, LanguageModel& to, const std::vector<LayerGains>& gains);

// Writes RUN/checkpoints/step_00000000, atomically, tensor by tensor: weights as they are in `weights`, in the types
// they have there, and what else `model` has (gains, and what its rules keep) from it. `checkpoint`: a directory
// whose moments are taken along (zeros for what is new), and trainer.json, as that of a run that starts from them;
// either may be missing. Returns the path. Collective.
std::string write_retrofitted(const ProcessGrid& grid,
                              LanguageModel& model,
                              const TensorSource& weights,
                              const std::string& checkpoint,
                              const std::string& run);

}  // namespace evenkeel
