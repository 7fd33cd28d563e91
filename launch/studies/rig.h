// A model small enough to train many of: the rig of the studies that train.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/config.h"
#include "framework/data/byte_dataset.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "launch/studies/points.h"
#include "model/model_config.h"
#include "parallel/process_grid.h"

namespace evenkeel::study {

// AdamW (0.9, 0.95), weight decay 1e-4 a step whatever the learning rate, clipping at 1, a cosine to 1e-5 after the
// warm-up, fp32.
struct RigConfig {
    std::string text = "runs/fortunes.txt";
    std::int64_t steps = 300;
    std::int64_t stop = 0;  // after so many of these steps; 0: none
    double warmup = 0.05;   // share of the steps
    std::int64_t batch = 16, seq_len = 128, width = 128, layers = 4, heads = 4, kv_heads = 2,
                 head_dim = 32;
    std::int64_t eval_sequences = 128;
    std::int64_t seed = 1;
    std::int64_t jobs = 0;
    void visit_fields(ConfigVisitor& v);
    void visit_sizes(ConfigVisitor& v);  // those after warmup
    void validate() const;               // throws kConfig

    // Of these sizes, with a method's settings.
    ModelConfig model(const std::string& method) const;
    ByteDataset open_text() const;
    static AdamWConfig optimizer(double peak_lr);
    static ScheduleConfig schedule(double peak_lr, std::int64_t warmup_steps);
};

// A peak learning rate; throws kConfig naming the setting.
void check_rate(const char* setting, double rate);

constexpr double kRigClipNorm = 1.0;

// A process by itself.
struct OneRank {
    std::unique_ptr<Communicator> world = make_single_communicator();
    ProcessGrid grid{*world, ParallelConfig{.tensor_parallel = 1, .data_parallel = 1}};
};

// What tells the rig's text from another; "" where the file can't be read.
std::string text_fingerprint(const RigConfig& rig);

// Logits times `factor` in steps begin .. end - 1, counting from 0.
struct LogitProbe {
    double factor = 1.0;
    std::int64_t begin = 0, end = 0;
};

// Trains. Numbers: initial_loss and loss (of held-out text, nats a byte), max_logit (the largest in any step),
// max_logit_uncapped (before a softcap), // last_max_logit and entropy (mean of the heads) of the last step, unigram and bigram (entropies of the held-out text),
// steps, seconds. A run whose loss is not finite ends there, with NaN for its loss. Curves over the step: loss,
// max_logit, entropy.
PointResult train_rig(const RigConfig& rig,
                      const ModelConfig& model,
                      double peak_lr,
                      const LogitProbe& probe = {});

// Processor time of a training step with `method` over that of one with `base`: both on one thread, step by step in
// turn, the median of the pairs' ratios. Numbers: overhead (ratio minus 1), step_seconds.
PointResult measure_overhead(const RigConfig& rig,
                             const std::string& method,
                             const std::string& base,
                             std::int64_t pairs);

}  // namespace evenkeel::study
