#include "framework/training/training_step.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "framework/training/gradients.h"

namespace evenkeel {

double StepOutcome::exposed_seconds() const {
    double sum = 0.0;
    for (const CommunicationPart& part : communication) sum += part.exposed;
    return sum;
}

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
      skip_batches_(parse_batch_ranges(config.skip_batches)),
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

// What the optimizer has made of the step's numbers.
void TrainingStep::note(StepOutcome& outcome, RunState& state) {
    if (makes_update(outcome.loss, outcome.grad_norm, outcome.limits)) {
        model_.finish_update();
        ++state.updates;
        return state.recent.add(outcome.loss, outcome.grad_norm);
    }
    model_.drop_update();
    if (!std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm)) {
        outcome.skip = StepOutcome::Skip::kNonFinite;
        return;
    }
    outcome.skip = StepOutcome::Skip::kOutlier;
    outcome.outlier_level = state.recent.add_outlier();
}

StepOutcome TrainingStep::take(RunState& state) {
    model_.take_communication();  // what ranks waited between steps, as in an evaluation
    const auto start = std::chrono::steady_clock::now();
    StepOutcome outcome;
    const std::int64_t sample =
        first_sample_outside(skip_batches_, state.sample, config_.batch_size);
    outcome.batches_left_out =
        (sample - state.sample + config_.batch_size - 1) / config_.batch_size;
    state.sample = sample;
    outcome.lr = learning_rate(schedule_, state.step, config_.steps);
    const UpdateScope scope =
        state.step < config_.first_phase_steps ? UpdateScope::kFirstPhase : UpdateScope::kAll;
    // Their norms are those of other parameters.
    if (state.step > 0 && state.step == config_.first_phase_steps) state.recent.clear_window();
    outcome.limits = outlier_limits(state.recent, config_.skip_outliers_sigma);
    compute_gradients(model_, micro_batches(state), numbers_, scope);
    // The same numbers on all ranks, so all decide alike.
    adamw_step(model_.buckets(), optimizer_, outcome.lr, config_.clip_norm, numbers_,
               state.updates_before + state.updates + 1, scope, outcome.limits);
    // On a GPU all of the step has only been asked for so far: this is where the host waits for it.
    const Tensor numbers = numbers_.to(Device::kCpu);
    outcome.loss = numbers.data<double>()[kLossIndex];
    outcome.grad_norm = std::sqrt(numbers.data<double>()[kSquaredNormIndex]);
    note(outcome, state);
    // Waits for what is asked for after the numbers too, such as gathers of updated values.
    outcome.communication = model_.take_communication();
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return outcome;
}

}  // namespace evenkeel
