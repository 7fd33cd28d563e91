// The settings of the training loop.
#pragma once

#include <cstdint>
#include <string>

#include "framework/config.h"

namespace evenkeel {

struct TrainerConfig {
    enum class NonFinite { kEnd, kSkip };
    std::int64_t steps = 200;
    std::int64_t batch_size = 16;        // sequences a step, over all data-parallel ranks
    std::int64_t micro_batch_size = 16;  // sequences a forward pass on one rank
    std::int64_t seq_len = 256;
    std::int64_t seed = 1;
    double clip_norm = 1.0;  // global gradient norm; 0 for none
    NonFinite non_finite = NonFinite::kEnd;
    double skip_outliers_sigma = 0.0;      // outliers.h; 0: no step is left out
    std::string skip_batches;              // batch_ranges.h: global batches never trained on
    std::int64_t log_interval = 1;         // steps between records in metrics.jsonl
    std::int64_t telemetry_interval = 0;   // steps between head tables; 0: in every record
    std::int64_t eval_interval = 0;        // steps between evaluations; 0: only at the end
    std::int64_t eval_sequences = 64;      // 0: the whole validation split
    std::int64_t checkpoint_interval = 0;  // steps between checkpoints; 0: only at the end
    std::int64_t replica_check_interval =
        100;                           // steps between comparisons of ranks' copies; 0: none
    std::int64_t checkpoint_keep = 2;  // newest checkpoints kept; 0: all
    bool checkpoint_async = true;      // write them beside the training (checkpoint_writer.h)
    std::string run_dir = "runs/default";
    // A run or checkpoint whose weights this run starts from, counting its own steps from 0; "": none. The
    // moments are taken along where it has them for a parameter, and with them the number of updates, for their
    // bias correction; others start at zero.
    std::string init_from;
    bool init_moments = true;            // false: all moments start at zero
    std::int64_t first_phase_steps = 0;  // steps that train only what Parameter::first_phase says
    bool resume = false;  // continue from the newest checkpoint in run_dir, if there is one
    std::int64_t stop_at_step =
        0;  // end (with a checkpoint) after this many steps of `steps`; 0: none
    void visit_fields(ConfigVisitor& v);
    void validate(int data_parallel_size) const;  // throws kConfig
    // Micro-batches a step on one rank; gradient accumulation adds them up.
    std::int64_t accumulation(int data_parallel_size) const;
};

}  // namespace evenkeel
