#include "framework/training/trainer_config.h"

#include <algorithm>
#include <cmath>

#include "framework/error.h"
#include "framework/training/batch_ranges.h"

namespace evenkeel {
namespace {

constexpr const char* kNonFiniteNames[] = {"end", "skip"};

}  // namespace

void TrainerConfig::visit_fields(ConfigVisitor& v) {
    v.field("steps", steps, "optimizer steps of the whole run");
    v.field("batch_size", batch_size, "sequences a step, over all data-parallel ranks");
    v.field("micro_batch_size", micro_batch_size,
            "sequences of one forward pass on one rank; gradients accumulate up to batch_size");
    v.field("seq_len", seq_len, "tokens of a sequence");
    v.field("seed", seed, "of initial weights and data order");
    v.field("clip_norm", clip_norm, "largest global gradient norm; 0: no limit");
    v.choice("non_finite", non_finite, kNonFiniteNames,
             "on a NaN or infinity in loss or gradient: end the run, or skip the step");
    v.field(
        "skip_outliers_sigma", skip_outliers_sigma,
        "leave out a step whose loss or gradient norm is more than this many standard deviations "
        "above the mean of the last 128; 0: never");
    v.field("skip_batches", skip_batches,
            "global batches, counted from 1, that are never trained on: \"1200-1350,4000\"");
    v.field("log_interval", log_interval, "steps between records in metrics.jsonl");
    v.field("telemetry_interval", telemetry_interval,
            "steps between tables of what each head does; 0: in every record");
    v.field("eval_interval", eval_interval, "steps between evaluations; 0: only at the end");
    v.field("eval_sequences", eval_sequences,
            "validation sequences of an evaluation; 0: all of them");
    v.field("checkpoint_interval", checkpoint_interval,
            "steps between checkpoints; 0: only at the end");
    v.field("replica_check_interval", replica_check_interval,
            "steps between comparisons of what several ranks hold copies of, also made before each "
            "checkpoint; 0: none");
    v.field("checkpoint_keep", checkpoint_keep, "newest checkpoints kept; 0: all");
    v.field("checkpoint_async", checkpoint_async,
            "write checkpoints beside the training, from a copy of the state in host memory");
    v.field("run_dir", run_dir, "directory of metrics and checkpoints");
    v.field("init_from", init_from,
            "run or checkpoint whose weights this run starts from, counting its own steps from 0");
    v.field("init_moments", init_moments,
            "whether init_from's optimizer moments are taken along, where it has them");
    v.field("first_phase_steps", first_phase_steps,
            "steps that train the gains of queries and keys alone; 0: none");
    v.field("resume", resume, "continue from the newest checkpoint in run_dir, if there is one");
    v.field("stop_at_step", stop_at_step,
            "end with a checkpoint after this many of the steps; 0: run them all");
}

std::int64_t TrainerConfig::accumulation(int data_parallel_size) const {
    return batch_size / (micro_batch_size * data_parallel_size);
}

void TrainerConfig::validate(int data_parallel_size) const {
    const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
        EVENKEEL_CHECK_CODE(value >= least, ErrorCode::kConfig, "TrainerConfig", "trainer.", name,
                            ": got ", value, ", want ", least, " or more");
    };
    const auto at_most = [](const char* name, std::int64_t value) {
        EVENKEEL_CHECK_CODE(value <= std::int64_t{1} << 30, ErrorCode::kConfig, "TrainerConfig",
                            "trainer.", name, ": got ", value, ", want at most 2^30");
    };
    at_least("steps", steps, 1);
    at_least("batch_size", batch_size, 1);
    at_most("batch_size", batch_size);
    at_least("micro_batch_size", micro_batch_size, 1);
    at_most("micro_batch_size", micro_batch_size);
    at_least("seq_len", seq_len, 1);
    at_least("seed", seed, 0);
    at_least("log_interval", log_interval, 1);
    at_least("telemetry_interval", telemetry_interval, 0);
    at_least("eval_interval", eval_interval, 0);
    at_least("eval_sequences", eval_sequences, 0);
    at_least("checkpoint_interval", checkpoint_interval, 0);
    at_least("replica_check_interval", replica_check_interval, 0);
    at_least("checkpoint_keep", checkpoint_keep, 0);
    at_least("first_phase_steps", first_phase_steps, 0);
    EVENKEEL_CHECK_CODE(first_phase_steps <= steps, ErrorCode::kConfig, "TrainerConfig",
                        "trainer.first_phase_steps: got ", first_phase_steps,
                        ", want at most trainer.steps (", steps, ")");
    at_least("stop_at_step", stop_at_step, 0);
    EVENKEEL_CHECK_CODE(clip_norm >= 0.0, ErrorCode::kConfig, "TrainerConfig",
                        "trainer.clip_norm: got ", clip_norm, ", want 0 or more");
    EVENKEEL_CHECK_CODE(std::isfinite(skip_outliers_sigma) && skip_outliers_sigma >= 0.0,
                        ErrorCode::kConfig, "TrainerConfig", "trainer.skip_outliers_sigma: got ",
                        skip_outliers_sigma, ", want 0 (never) or a positive number");
    parse_batch_ranges(skip_batches);
    EVENKEEL_CHECK_CODE(!run_dir.empty(), ErrorCode::kConfig, "TrainerConfig",
                        "trainer.run_dir: got nothing, want a directory");
    std::string smaller;  // micro-batch: the largest that divides each rank's part, if there is one
    if (batch_size % data_parallel_size == 0) {
        const std::int64_t of_rank = batch_size / data_parallel_size;
        std::int64_t micro = std::min(micro_batch_size, of_rank);
        while (of_rank % micro != 0) --micro;
        smaller = concat(", or trainer.micro_batch_size=", micro);
    }
    EVENKEEL_CHECK_CODE(batch_size % (micro_batch_size * data_parallel_size) == 0,
                        ErrorCode::kConfig, "TrainerConfig", "trainer.batch_size: got ", batch_size,
                        ", want a multiple of ", micro_batch_size * data_parallel_size,
                        " (trainer.micro_batch_size ", micro_batch_size, " x ", data_parallel_size,
                        " data-parallel ranks)", smaller);
}

}  // namespace evenkeel
