#include "framework/training/training_step.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "framework/training/gradients.h"

namespace evenkeel {

TrainingStep::TrainingStep(TrainableModel& model,
                           const Dataset& data,
                           const TrainerConfig& config,
                           const ScheduleConfig& schedule,
                           const AdamWConfig& optimizer)
    : model_(model),
      data_(data),
      config_(config),
      schedule_(schedule),
      optimizer_(optimizer),
      accumulation_(config.accumulation(model.data_parallel_size())),
      numbers_(Tensor::zeros({2}, DType::kFloat64, model.buckets().device())) {}

// Micro-batch `index` of this rank's part of the step that starts at state.sample.
Batch TrainingStep::micro_batch(const RunState& state, std::int64_t index) const {
    const std::int64_t first =
        state.sample +
        model_.data_parallel_rank() * (config_.batch_size / model_.data_parallel_size()) +
        index * config_.micro_batch_size;
    std::vector<std::int64_t> samples(static_cast<std::size_t>(config_.micro_batch_size));
    std::iota(samples.begin(), samples.end(), first);
    return data_.train_batch(static_cast<std::uint64_t>(config_.seed), samples);
}

std::vector<Batch> TrainingStep::micro_batches(const RunState& state) const {
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < accumulation_; ++i) batches.push_back(micro_batch(state, i));
    return batches;
}

StepOutcome TrainingStep::take(RunState& state) {
    model_.take_exposed_seconds();  // what ranks waited between steps, as in an evaluation
    const auto start = std::chrono::steady_clock::now();
    StepOutcome outcome;
    outcome.lr = learning_rate(schedule_, state.step, config_.steps);
    const UpdateScope scope =
        state.step < config_.first_phase_steps ? UpdateScope::kFirstPhase : UpdateScope::kAll;
    compute_gradients(model_, micro_batches(state), numbers_, scope);
    // The same numbers on all ranks, so all decide alike.
    adamw_step(model_.buckets(), optimizer_, outcome.lr, config_.clip_norm, numbers_,
               state.updates_before + state.updates + 1, scope);
    model_.finish_update();
    // On a GPU all of the step has only been asked for so far: this is where the host waits for it.
    const Tensor numbers = numbers_.to(Device::kCpu);
    outcome.loss = numbers.data<double>()[kLossIndex];
    outcome.grad_norm = std::sqrt(numbers.data<double>()[kSquaredNormIndex]);
    outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
    if (!outcome.skipped) ++state.updates;
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    outcome.exposed_seconds = model_.take_exposed_seconds();
    return outcome;
}

}  // namespace evenkeel
