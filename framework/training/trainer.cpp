#include "framework/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "framework/log.h"
#include "framework/training/checkpoint_writer.h"
#include "framework/training/run_lock.h"
#include "framework/training/run_record.h"
#include "framework/training/run_start.h"
#include "framework/training/run_state.h"
#include "framework/training/training_step.h"

namespace evenkeel {
namespace {

// NaN of none.
double median(std::vector<double> values) {
    if (values.empty()) return std::nan("");
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

class TrainingRun {
  public:
    TrainingRun(TrainableModel& model,
                const Dataset& data,
                const TrainerConfig& config,
                const ScheduleConfig& schedule,
                const AdamWConfig& optimizer,
                const std::vector<AlarmRule>& alarms,
                const RunControl& control)
        : model_(model),
          data_(data),
          config_(config),
          control_(control),
          step_(model, data, config, schedule, optimizer),
          recorder_(model, config, alarms),
          checkpoints_(model,
                       CheckpointStore(config.run_dir + "/checkpoints", config.checkpoint_keep),
                       config.checkpoint_async) {
        state_.seed = config.seed;
        state_.seq_len = config.seq_len;
        state_.fingerprint = data.fingerprint();
        state_.data = data.description();
        state_.model = model.description();
        state_.settings = settings_json(config, schedule, optimizer);
    }

    TrainResult run(const std::string& config_json,
                    const std::function<void(std::int64_t)>& after_step);

  private:
    void start();
    bool stops();
    void handle_non_finite(const StepOutcome& outcome);
    void tell_outlier(const StepOutcome& outcome) const;
    std::optional<double> validate(TrainResult& result);
    bool make_up_evaluation(std::int64_t end_step, TrainResult& result);
    void check_replicas();
    TrainResult take_steps(const std::string& config_json,
                           const std::function<void(std::int64_t)>& after_step);
    void say_and_finish_checkpoint(const std::string& what);
    void start_checkpoint();
    std::string finish_checkpoint();

    TrainableModel& model_;
    const Dataset& data_;
    const TrainerConfig& config_;
    const RunControl& control_;
    StopRequest request_;  // the same on all ranks
    TrainingStep step_;
    RunRecorder recorder_;
    std::optional<RunLock> lock_;  // of the main rank; held until all is written
    CheckpointWriter checkpoints_;
    RunState state_;
};

// Takes the run directory, and begins or goes on.
void TrainingRun::start() {
    bool made_directory = false;
    if (model_.is_main_rank()) {
        std::error_code error;
        made_directory = std::filesystem::create_directories(config_.run_dir, error);
        EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "train", "trainer.run_dir: cannot create ",
                            config_.run_dir, ": ", error.message());
        lock_.emplace(config_.run_dir);
        if (control_.owns_directory) control_.owns_directory();
    }
    try {
        start_or_resume(model_, config_, checkpoints_.store(), control_.rewind_to, state_,
                        recorder_.board());
    } catch (...) {
        if (made_directory) {  // a start that fails leaves nothing
            std::error_code ignored;
            std::filesystem::remove(config_.run_dir + "/lock", ignored);
            std::filesystem::remove(config_.run_dir, ignored);
        }
        throw;
    }
}

// Asks all ranks; whether the run is to end.
bool TrainingRun::stops() {
    if (!control_.stop) return false;
    const double asked = std::max(control_.stop().number(), request_.number());
    request_ = StopRequest::from(model_.max_over_ranks(asked));
    return request_.asks_to_end();
}

void TrainingRun::tell_outlier(const StepOutcome& outcome) const {
    if (!model_.is_main_rank()) return;
    log_warning(concat("step ", state_.step + 1, ": loss ", outcome.loss, " (limit ",
                       outcome.limits.loss, "), gradient norm ", outcome.grad_norm, " (limit ",
                       outcome.limits.grad_norm,
                       "); the step is skipped (trainer.skip_outliers_sigma)"));
    if (!outcome.outlier_level) return;
    log_warning(concat("step ", state_.step + 1, ": ", kOutlierLeast,
                       " steps in a row were skipped; the next ones are taken as the new level"));
}

// Nothing when the run is to end before it is through.
std::optional<double> TrainingRun::validate(TrainResult& result) {
    const std::optional<double> loss =
        evaluate_unless(model_, data_, config_.eval_sequences, config_.micro_batch_size,
                        [this] { return stops(); });
    if (loss.has_value()) result.validation_loss = *loss;
    return loss;
}

// The step that the run resumes at was to be evaluated, and a signal came before or between; the weights are the same
// again. Returns whether it was made up.
bool TrainingRun::make_up_evaluation(std::int64_t end_step, TrainResult& result) {
    const bool due = state_.step == end_step ||
                     (config_.eval_interval > 0 && state_.step % config_.eval_interval == 0);
    if (state_.step == 0 || !due) return false;
    const double there = recorder_.is_evaluated(state_.step) ? 1.0 : 0.0;
    if (model_.max_over_ranks(there) != 0.0) return false;
    const std::optional<double> loss = validate(result);
    if (loss.has_value()) recorder_.record_evaluation(state_.step, *loss);
    return loss.has_value();
}

// The same on all ranks. Weights that have drifted apart are no state to go on from, so that this comes before a
// checkpoint.
void TrainingRun::check_replicas() {
    const std::string drift = model_.replica_drift();
    if (drift.empty()) return;
    const std::string message =
        concat("step ", state_.step, ": ", drift,
               "; no checkpoint is written (trainer.resume goes on from an earlier one, "
               "trainer.replica_check_interval=0 leaves the comparison out)");
    say_and_finish_checkpoint(message);
    throw_error(ErrorCode::kInternal, "train", message);
}

// An error that all ranks have seen is said at once, then they wait for a checkpoint of before that is pending.
void TrainingRun::say_and_finish_checkpoint(const std::string& what) {
    if (!checkpoints_.pending()) return;
    if (model_.is_main_rank()) {
        log_error(concat("[train] ", what, "; the run ends when the checkpoint of step ",
                         checkpoints_.step(), " is written"));
    }
    checkpoints_.finish();
}

// Names the place; throws when the configuration says so.
void TrainingRun::handle_non_finite(const StepOutcome& outcome) {
    const std::string place = model_.locate_non_finite(step_.micro_batches(state_));
    const std::string what =
        concat("step ", state_.step + 1, ": loss ", outcome.loss, ", gradient norm ",
               outcome.grad_norm, "; the first value that is not finite is in ",
               place.empty() ? "none of the tensors when the step is run again" : place);
    if (config_.non_finite == TrainerConfig::NonFinite::kSkip) {
        if (model_.is_main_rank()) log_warning(what + "; the step is skipped");
        return;
    }
    recorder_.record_non_finite(state_.step + 1, outcome);
    const std::string message =
        what + "; no update was made (trainer.non_finite \"skip\" leaves such steps out)";
    say_and_finish_checkpoint(message);
    throw NonFiniteStep("[train] " + message);
}

void TrainingRun::start_checkpoint() {
    state_.alarms = recorder_.board().state();
    checkpoints_.start(state_.step, to_json(state_));
}

// Waits for the one that was started last, which must be there now; returns its path.
std::string TrainingRun::finish_checkpoint() {
    EVENKEEL_CHECK_CODE(
        checkpoints_.finish(), ErrorCode::kIo, "train", "step ", state_.step,
        ": the checkpoint that the run ends with could not be written: ", checkpoints_.failure());
    return checkpoints_.committed();
}

TrainResult TrainingRun::run(const std::string& config_json,
                             const std::function<void(std::int64_t)>& after_step) {
    try {
        return take_steps(config_json, after_step);
    } catch (const std::exception& error) {
        // What is thrown is said when this rank's thread has ended, which may take minutes.
        if (checkpoints_.writes()) {
            log_error(concat(error.what(),
                             "; this rank ends when its part of the checkpoint of step ",
                             checkpoints_.step(), " is written"));
        }
        throw;
    }
}

TrainResult TrainingRun::take_steps(const std::string& config_json,
                                    const std::function<void(std::int64_t)>& after_step) {
    start();
    if (control_.begins) control_.begins();
    const std::int64_t first_step = state_.step;
    const std::int64_t end_step =
        config_.stop_at_step > 0 ? std::min(config_.steps, config_.stop_at_step) : config_.steps;
    recorder_.begin(first_step, end_step, config_json);
    const auto due = [&](std::int64_t interval) {
        return interval > 0 && state_.step % interval == 0;
    };
    TrainResult result;
    result.last_step = first_step;
    std::vector<double> rates;
    if (stops()) {  // what there is to go on from is there
        result.stopped = request_;
        if (first_step > 0) result.checkpoint = checkpoints_.store().path(first_step);
        return result;
    }
    const bool made_up = make_up_evaluation(end_step, result);
    while (state_.step < end_step && !request_.asks_to_end()) {
        checkpoints_.poll();
        const StepOutcome outcome = step_.take(state_);
        if (outcome.batches_left_out > 0 && model_.is_main_rank()) {
            log_info(concat("step ", state_.step + 1, ": ", outcome.batches_left_out,
                            " batches before its own are left out (trainer.skip_batches)"));
        }
        if (outcome.skip == StepOutcome::Skip::kNonFinite) handle_non_finite(outcome);
        if (outcome.skip == StepOutcome::Skip::kOutlier) tell_outlier(outcome);
        recorder_.judge(outcome);
        ++state_.step;
        state_.sample += config_.batch_size;
        if (after_step) after_step(state_.step - first_step);

        const bool last = state_.step == end_step;
        std::optional<double> validation_loss;
        if (!stops() && (last || due(config_.eval_interval))) validation_loss = validate(result);
        const bool with_tables =
            config_.telemetry_interval == 0 || last || due(config_.telemetry_interval);
        AlarmAction action = AlarmAction::kNone;
        if (last || validation_loss.has_value() || due(config_.log_interval) ||
            due(config_.telemetry_interval)) {
            action = recorder_.record(state_, outcome, validation_loss, with_tables);
        }
        const bool asked = request_.asks_for_checkpoint();
        const bool saves =
            last || due(config_.checkpoint_interval) || asked || action >= AlarmAction::kCheckpoint;
        if (due(config_.replica_check_interval) || (saves && config_.replica_check_interval > 0)) {
            check_replicas();
        }
        if (saves) {
            start_checkpoint();
            if (action == AlarmAction::kCheckpoint && model_.is_main_rank()) {
                log_info(
                    concat("checkpoint for the alarm: ", checkpoints_.store().path(state_.step)));
            }
        }
        if (last || action == AlarmAction::kEnd || request_.asks_to_end()) {
            result.checkpoint = finish_checkpoint();
        } else if (asked) {
            if (checkpoints_.finish() && model_.is_main_rank()) {
                log_info(
                    concat("checkpoint for ", request_.name(), ": ", checkpoints_.committed()));
            }
            request_ = {};
        }
        if (action == AlarmAction::kEnd) {
            throw AlarmError(concat("[train] step ", state_.step, ": ", recorder_.last_alarm(),
                                    "; the run has stopped at step ", state_.step, " of ",
                                    config_.steps, " after a checkpoint, ", result.checkpoint,
                                    " (trainer.resume goes on from it)"));
        }
        result.losses.push_back(outcome.loss);
        rates.push_back(static_cast<double>(config_.batch_size * config_.seq_len) /
                        outcome.seconds);
    }
    if (result.losses.empty()) {  // resumed at the end
        if (!made_up) validate(result);
        result.checkpoint = checkpoints_.store().path(state_.step);
    }
    if (request_.asks_to_end()) result.stopped = request_;
    result.steps = static_cast<std::int64_t>(result.losses.size());
    result.tokens_per_second = median(rates);
    result.tflops_per_rank = recorder_.tflops_per_rank(result.tokens_per_second);
    result.last_step = state_.step;
    result.skipped = state_.step - state_.updates;
    return result;
}

}  // namespace

TrainResult train(TrainableModel& model,
                  const Dataset& data,
                  const TrainerConfig& trainer,
                  const ScheduleConfig& schedule,
                  const AdamWConfig& optimizer,
                  const std::string& config_json,
                  const std::function<void(std::int64_t)>& after_step,
                  const std::vector<AlarmRule>& alarms,
                  const RunControl& control) {
    trainer.validate(model.data_parallel_size());
    return TrainingRun(model, data, trainer, schedule, optimizer, alarms, control)
        .run(config_json, after_step);
}

}  // namespace evenkeel
