// A model and all that one step of training does to it, for measurements of whole steps.
#pragma once

#include <algorithm>
#include <string>

#include "framework/optimizer/adamw.h"
#include "framework/rng.h"
#include "framework/training/gradients.h"
#include "launch/bench.h"
#include "model/language_model.h"

namespace evenkeel::bench {

inline ModelConfig model_of(const StepBench& size) {
    ModelConfig config;
    config.num_layers = size.layers;
    config.width = size.width;
    config.feed_forward_width = size.width * 11 / 4;
    config.max_seq_len = size.tokens;
    config.attention.head_dim = std::min<std::int64_t>(64, size.width / 2);
    config.attention.num_heads = size.width / config.attention.head_dim;
    config.attention.num_kv_heads = config.attention.num_heads / 2;
    return config;
}

// "NAME (C=512, 8 layers, T=1024, B=2)".
inline std::string name_of(const StepBench& size, const std::string& what) {
    return concat(what, " (C=", size.width, ", ", size.layers, " layers, T=", size.tokens,
                  ", B=", size.batch, ")");
}

class Stepper {
  public:
    Stepper(const ProcessGrid& grid, const StepBench& size, const ModelConfig& config)
        : size_(size),
          model_(grid, config, 1),
          batch_{Tensor::uninitialized({size.batch, size.tokens}, DType::kInt32),
                 Tensor::uninitialized({size.batch, size.tokens}, DType::kInt32),
                 {}} {
        const CounterRng rng(1, purpose("bench"));
        for (std::int64_t i = 0; i < size.batch * size.tokens; ++i) {
            const auto index = static_cast<std::uint64_t>(i);
            batch_.tokens.data<std::int32_t>()[i] =
                static_cast<std::int32_t>(rng.below(index, 256));
            batch_.targets.data<std::int32_t>()[i] =
                static_cast<std::int32_t>(rng.below(index + 1, 256));
        }
    }
    Stepper(const ProcessGrid& grid, const StepBench& size) : Stepper(grid, size, model_of(size)) {}

    void step() {
        compute_gradients(model_, {&batch_, 1}, numbers_);
        update();
        model_.finish_update();
        model_.head_metrics();
    }
    void update() { adamw_step(model_.buckets(), {}, 1e-4, 0.0, numbers_, ++count_); }
    double seconds_of_step() {
        return seconds_of([this] { step(); }, 1);
    }
    LanguageModel& model() { return model_; }
    double flops() const {
        return static_cast<double>(size_.batch * size_.tokens) *
               model_.flops_per_token(size_.tokens);
    }

  private:
    StepBench size_;
    LanguageModel model_;
    Batch batch_;
    Tensor numbers_ = Tensor::zeros({2}, DType::kFloat64);
    std::int64_t count_ = 0;
};

}  // namespace evenkeel::bench
