#include "framework/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/run_lock.h"
#include "framework/training/run_state.h"
#include "framework/training/spikes.h"

namespace evenkeel {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string fixed(double value, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string duration(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
    if (whole < 60) return concat(whole, " s");
    if (whole < 3600) return concat(whole / 60, " min ", whole % 60, " s");
    return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
}

double median(std::vector<double> values) {
    if (values.empty()) return 0.0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// What decides the course of a run beside model, data and seed. Not where it stops or what it writes.
std::string settings_json(const TrainerConfig& trainer,
                          ScheduleConfig schedule,
                          AdamWConfig optimizer) {
    TrainerConfig t = trainer;
    return to_json([&](ConfigVisitor& v) {
        v.field("steps", t.steps, "");
        v.field("batch_size", t.batch_size, "");
        v.field("micro_batch_size", t.micro_batch_size, "");
        v.field("clip_norm", t.clip_norm, "");
        if (t.first_phase_steps > 0) v.field("first_phase_steps", t.first_phase_steps, "");
        v.section("schedule", schedule, "");
        v.section("optimizer", optimizer, "");
    });
}

struct StepOutcome {
    double loss = 0.0;
    double grad_norm = 0.0;
    double lr = 0.0;
    double seconds = 0.0;
    double exposed_seconds = 0.0;  // of waiting for other ranks
    bool skipped = false;
};

class TrainingRun {
  public:
    TrainingRun(TrainableModel& model,
                const Dataset& data,
                const TrainerConfig& config,
                const ScheduleConfig& schedule,
                const AdamWConfig& optimizer,
                const std::vector<AlarmRule>& alarms)
        : model_(model),
          data_(data),
          config_(config),
          schedule_(schedule),
          optimizer_(optimizer),
          board_(alarms, config.steps),
          store_(config.run_dir + "/checkpoints", config.checkpoint_keep),
          accumulation_(config.accumulation(model.data_parallel_size())),
          numbers_(Tensor::zeros({2}, DType::kFloat64, model.buckets().device())) {
        state_.seed = config.seed;
        state_.seq_len = config.seq_len;
        state_.fingerprint = data.fingerprint();
        state_.model = model.description();
        state_.settings = settings_json(config, schedule, optimizer);
    }

    TrainResult run(const std::string& config_json,
                    const std::function<void(std::int64_t)>& after_step);

  private:
    void start_or_resume();
    void resume_from(const std::string& checkpoint);
    void start_from(const std::string& checkpoint);
    Batch micro_batch(std::int64_t index) const;
    std::vector<Batch> micro_batches() const;
    StepOutcome take_step();
    void handle_non_finite(const StepOutcome& outcome);
    void judge(const StepOutcome& outcome);
    AlarmAction record(const StepOutcome& outcome,
                       std::optional<double> validation_loss,
                       bool with_tables,
                       bool last);
    AlarmAction check_alarms(MetricRecord& record);
    void show_progress(const MetricRecord& record, bool last);
    std::string save_checkpoint();

    TrainableModel& model_;
    const Dataset& data_;
    const TrainerConfig& config_;
    const ScheduleConfig& schedule_;
    const AdamWConfig& optimizer_;
    AlarmBoard board_;
    std::string last_alarm_;  // the line of the last one that was raised
    Deviation grad_norm_deviation_{128, 64, 6.0};
    double grad_norm_deviations_ = 0.0;  // the largest since the last record
    SpikeScore loss_spikes_, grad_norm_spikes_;
    CheckpointStore store_;
    std::int64_t accumulation_;
    Tensor numbers_;  // of the step: see compute_gradients
    RunState state_;
    std::int64_t first_step_ = 0;
    std::int64_t end_step_ = 0;
    std::unique_ptr<MetricWriter> metrics_;  // main rank only
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_shown_{};
};

RunState read_run_state(const std::string& checkpoint) {
    const std::string file = checkpoint + "/trainer.json";
    return parse_run_state(read_file(file), file);
}

void TrainingRun::resume_from(const std::string& checkpoint) {
    const RunState saved = read_run_state(checkpoint);
    check_resumable(saved, state_, checkpoint);
    const std::string changed = json_difference(state_.settings, saved.settings);
    if (!changed.empty() && model_.is_main_rank()) {
        log_warning("resuming with other settings than " + checkpoint +
                    " was trained with: " + changed);
    }
    model_.load_state(checkpoint);
    state_.step = saved.step;
    state_.updates = saved.updates;
    state_.updates_before = saved.updates_before;
    state_.sample = saved.sample;
    board_.restore(saved.alarms);
    if (model_.is_main_rank()) log_info(concat("resuming from ", checkpoint));
}

// The moments that are taken along are means over the updates before: dividing them as if they had just
// begun would make the first steps many times too long.
void TrainingRun::start_from(const std::string& checkpoint) {
    const bool has_moments = model_.load_initial(checkpoint, config_.init_moments);
    if (has_moments) {
        const RunState saved = read_run_state(checkpoint);
        state_.updates_before = saved.updates_before + saved.updates;
    }
    if (!model_.is_main_rank()) return;
    log_info(concat("starting from ", checkpoint,
                    has_moments ? concat(", with moments of ", state_.updates_before, " updates")
                                : ", without moments"));
}

void TrainingRun::start_or_resume() {
    const ParameterList& parameters = model_.parameters();
    const bool has_first_phase =
        std::any_of(parameters.begin(), parameters.end(),
                    [](const Parameter* parameter) { return parameter->first_phase; });
    EVENKEEL_CHECK_CODE(config_.first_phase_steps == 0 || has_first_phase, ErrorCode::kConfig,
                        "train", "trainer.first_phase_steps: got ", config_.first_phase_steps,
                        ", want 0: the model has no gains of queries and keys to train alone");
    const std::string checkpoint = store_.latest();
    if (!checkpoint.empty()) {
        EVENKEEL_CHECK_CODE(config_.resume, ErrorCode::kConfig, "train", "trainer.run_dir: got ",
                            config_.run_dir, ", which holds checkpoints of an earlier run (",
                            checkpoint,
                            "), want an empty one; or set trainer.resume to continue that run");
        resume_from(checkpoint);
    } else if (!config_.init_from.empty()) {
        start_from(newest_checkpoint(config_.init_from));
    }
    first_step_ = state_.step;
    end_step_ =
        config_.stop_at_step > 0 ? std::min(config_.steps, config_.stop_at_step) : config_.steps;
    model_.barrier();  // all have looked before the main rank writes
}

// Micro-batch `index` of this rank's part of the step that starts at state_.sample.
Batch TrainingRun::micro_batch(std::int64_t index) const {
    const std::int64_t first =
        state_.sample +
        model_.data_parallel_rank() * (config_.batch_size / model_.data_parallel_size()) +
        index * config_.micro_batch_size;
    std::vector<std::int64_t> samples(static_cast<std::size_t>(config_.micro_batch_size));
    std::iota(samples.begin(), samples.end(), first);
    return data_.train_batch(static_cast<std::uint64_t>(config_.seed), samples);
}

std::vector<Batch> TrainingRun::micro_batches() const {
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < accumulation_; ++i) batches.push_back(micro_batch(i));
    return batches;
}

StepOutcome TrainingRun::take_step() {
    model_.take_exposed_seconds();  // what ranks waited between steps, as in an evaluation
    const auto start = Clock::now();
    StepOutcome outcome;
    outcome.lr = learning_rate(schedule_, state_.step, config_.steps);
    const UpdateScope scope =
        state_.step < config_.first_phase_steps ? UpdateScope::kFirstPhase : UpdateScope::kAll;
    compute_gradients(model_, micro_batches(), numbers_, scope);
    // The same numbers on all ranks, so all decide alike.
    adamw_step(model_.buckets(), optimizer_, outcome.lr, config_.clip_norm, numbers_,
               state_.updates_before + state_.updates + 1, scope);
    model_.finish_update();
    // On a GPU all of the step has only been asked for so far: this is where the host waits for it.
    const Tensor numbers = numbers_.to(Device::kCpu);
    outcome.loss = numbers.data<double>()[kLossIndex];
    outcome.grad_norm = std::sqrt(numbers.data<double>()[kSquaredNormIndex]);
    outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
    if (!outcome.skipped) ++state_.updates;
    outcome.seconds = seconds_since(start);
    outcome.exposed_seconds = model_.take_exposed_seconds();
    return outcome;
}

// Names the place; throws when the configuration says so.
void TrainingRun::handle_non_finite(const StepOutcome& outcome) {
    const std::string place = model_.locate_non_finite(micro_batches());
    const std::string what =
        concat("step ", state_.step + 1, ": loss ", outcome.loss, ", gradient norm ",
               outcome.grad_norm, "; the first value that is not finite is in ",
               place.empty() ? "none of the tensors when the step is run again" : place);
    if (config_.non_finite == TrainerConfig::NonFinite::kSkip) {
        if (model_.is_main_rank()) log_warning(what + "; the step is skipped");
        return;
    }
    if (metrics_ != nullptr) {
        metrics_->write(
            {state_.step + 1,
             {{"loss", outcome.loss}, {"lr", outcome.lr}, {"grad_norm", outcome.grad_norm}},
             {},
             {}});
    }
    throw_error(ErrorCode::kNonFinite, "train",
                what + "; no update was made (trainer.non_finite \"skip\" leaves such steps out)");
}

void TrainingRun::show_progress(const MetricRecord& record, bool last) {
    if (!last && !log_to_terminal() && seconds_since(last_shown_) < 2.0) return;
    last_shown_ = Clock::now();
    std::string line = concat("step ", record.step, "/", config_.steps);
    bool stays = false;  // on a terminal, where later lines take the place of others
    for (const auto& [name, value] : record.scalars) {
        if (name == "loss") line += "  loss " + fixed(value, 4);
        if (name == "tokens_per_second") line += "  " + fixed(value, 0) + " tokens/s";
        if (name == "exposed_communication") line += "  waits " + fixed(100.0 * value, 1) + " %";
        if (name == "max_logit_max") line += "  max logit " + fixed(value, 2);
        if (name == "max_logit_uncapped_max") line += " (" + fixed(value, 2) + " uncapped)";
        if (name == "entropy_mean") line += "  entropy " + fixed(value, 2);
        if (name == "validation_loss") {
            line += "  validation loss " + fixed(value, 4);
            stays = true;
        }
    }
    const double per_step = seconds_since(start_) / static_cast<double>(state_.step - first_step_);
    line += "  left " + duration(per_step * static_cast<double>(end_step_ - state_.step));
    log_progress(line, last || stays);
}

// Every step, recorded or not.
void TrainingRun::judge(const StepOutcome& outcome) {
    grad_norm_deviations_ =
        std::max(grad_norm_deviations_, grad_norm_deviation_.add(outcome.grad_norm));
    loss_spikes_.add(outcome.loss);
    grad_norm_spikes_.add(outcome.grad_norm);
}

// The same on all ranks: the numbers that rules look at are. Returns the severest action asked for.
AlarmAction TrainingRun::check_alarms(MetricRecord& record) {
    AlarmAction action = AlarmAction::kNone;
    if (board_.empty()) return action;
    record.alarms = board_.check(record);
    for (const AlarmEvent& event : record.alarms) {
        if (model_.is_main_rank()) event.raised ? log_warning(event.text) : log_info(event.text);
        if (!event.raised) continue;
        action = std::max(action, event.action);
        if (action == event.action) last_alarm_ = event.text;
    }
    record.scalars.emplace_back("alarms_active", static_cast<double>(board_.active()));
    return action;
}

AlarmAction TrainingRun::record(const StepOutcome& outcome,
                                std::optional<double> validation_loss,
                                bool with_tables,
                                bool last) {
    MetricRecord record;
    record.step = state_.step;
    record.scalars = {
        {"loss", outcome.loss},
        {"lr", outcome.lr},
        {"grad_norm", outcome.grad_norm},
        {"tokens_per_second",
         static_cast<double>(config_.batch_size * config_.seq_len) / outcome.seconds}};
    if (outcome.exposed_seconds > 0.0) {
        record.scalars.emplace_back("exposed_communication",
                                    outcome.exposed_seconds / outcome.seconds);
    }
    if (validation_loss.has_value()) {
        record.scalars.emplace_back("validation_loss", *validation_loss);
    }
    for (auto& scalar : model_.scalar_metrics()) record.scalars.push_back(std::move(scalar));
    if (with_tables) record.tables = model_.head_metrics();
    for (const MetricTable& table : record.tables) {
        if (table.values.empty()) continue;
        const auto count = static_cast<double>(table.values.size());
        if (table.summary == MetricTable::Summary::kMax) {
            record.scalars.emplace_back(
                table.name + "_max", *std::max_element(table.values.begin(), table.values.end()));
        } else if (table.summary == MetricTable::Summary::kMean) {
            record.scalars.emplace_back(
                table.name + "_mean",
                std::accumulate(table.values.begin(), table.values.end(), 0.0) / count);
        }
    }
    record.scalars.emplace_back("grad_norm_deviations", std::exchange(grad_norm_deviations_, 0.0));
    record.scalars.emplace_back("loss_spike_score", loss_spikes_.percent());
    record.scalars.emplace_back("grad_norm_spike_score", grad_norm_spikes_.percent());
    record.scalars.emplace_back("skipped", static_cast<double>(state_.step - state_.updates));
    // What is not finite is trainer.non_finite's affair.
    const AlarmAction action = outcome.skipped ? AlarmAction::kNone : check_alarms(record);
    if (metrics_ == nullptr) return action;
    metrics_->write(record);
    show_progress(record, last);
    return action;
}

std::string TrainingRun::save_checkpoint() {
    const std::string path = store_.path(state_.step);
    // Only the main rank knows the temporary directory, and only it writes there.
    const std::string directory = model_.is_main_rank() ? store_.begin(state_.step) : path;
    model_.save_state(directory);
    if (model_.is_main_rank()) {
        state_.alarms = board_.state();
        write_file_atomically(directory + "/trainer.json", to_json(state_));
        store_.commit(state_.step);
    }
    model_.barrier();
    return path;
}

TrainResult TrainingRun::run(const std::string& config_json,
                             const std::function<void(std::int64_t)>& after_step) {
    std::optional<RunLock> lock;  // of the main rank, which alone writes
    bool made_directory = false;
    if (model_.is_main_rank()) {
        std::error_code error;
        made_directory = std::filesystem::create_directories(config_.run_dir, error);
        EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "train", "trainer.run_dir: cannot create ",
                            config_.run_dir, ": ", error.message());
        lock.emplace(config_.run_dir);
    }
    try {
        start_or_resume();
    } catch (...) {
        if (made_directory) {  // a start that fails leaves nothing
            std::error_code ignored;
            std::filesystem::remove(config_.run_dir + "/lock", ignored);
            std::filesystem::remove(config_.run_dir, ignored);
        }
        throw;
    }
    if (model_.is_main_rank()) {
        write_file_atomically(config_.run_dir + "/config.json", config_json);
        metrics_ = std::make_unique<MetricWriter>(config_.run_dir, state_.step + 1);
    }
    const auto due = [&](std::int64_t interval) {
        return interval > 0 && state_.step % interval == 0;
    };
    TrainResult result;
    std::vector<double> rates;
    start_ = Clock::now();
    while (state_.step < end_step_) {
        const StepOutcome outcome = take_step();
        if (outcome.skipped) handle_non_finite(outcome);
        judge(outcome);
        ++state_.step;
        state_.sample += config_.batch_size;
        if (after_step) after_step(state_.step - first_step_);

        const bool last = state_.step == end_step_;
        std::optional<double> validation_loss;
        if (last || due(config_.eval_interval)) {
            validation_loss =
                evaluate(model_, data_, config_.eval_sequences, config_.micro_batch_size);
            result.validation_loss = *validation_loss;
        }
        const bool with_tables =
            config_.telemetry_interval == 0 || last || due(config_.telemetry_interval);
        AlarmAction action = AlarmAction::kNone;
        if (last || validation_loss.has_value() || due(config_.log_interval) ||
            due(config_.telemetry_interval)) {
            action = record(outcome, validation_loss, with_tables, last);
        }
        if (last || due(config_.checkpoint_interval) || action >= AlarmAction::kCheckpoint) {
            result.checkpoint = save_checkpoint();
            if (action == AlarmAction::kCheckpoint && model_.is_main_rank()) {
                log_info("checkpoint for the alarm: " + result.checkpoint);
            }
        }
        if (action == AlarmAction::kEnd) {
            throw AlarmError(concat("[train] step ", state_.step, ": ", last_alarm_,
                                    "; the run ends after a checkpoint, ", result.checkpoint,
                                    " (trainer.resume goes on from it)"));
        }
        result.losses.push_back(outcome.loss);
        rates.push_back(static_cast<double>(config_.batch_size * config_.seq_len) /
                        outcome.seconds);
    }
    if (result.losses.empty()) {  // resumed at the end
        result.validation_loss =
            evaluate(model_, data_, config_.eval_sequences, config_.micro_batch_size);
        result.checkpoint = store_.path(state_.step);
    }
    result.steps = static_cast<std::int64_t>(result.losses.size());
    result.tokens_per_second = median(rates);
    result.skipped = state_.step - state_.updates;
    return result;
}

}  // namespace

void compute_gradients(TrainableModel& model,
                       std::span<const Batch> micro_batches,
                       const Tensor& numbers,
                       UpdateScope scope) {
    model.buckets().zero_gradients();
    numbers.zero();
    const Tensor loss = numbers.slice(0, kLossIndex, kLossIndex + 1);
    const double share = 1.0 / static_cast<double>(micro_batches.size());
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        model.forward_backward(micro_batches[i], share, i + 1 == micro_batches.size(), loss);
    }
    if (scope == UpdateScope::kFirstPhase) model.buckets().zero_gradients_after_first_phase();
    model.reduce_numbers(numbers);
}

TrainResult train(TrainableModel& model,
                  const Dataset& data,
                  const TrainerConfig& trainer,
                  const ScheduleConfig& schedule,
                  const AdamWConfig& optimizer,
                  const std::string& config_json,
                  const std::function<void(std::int64_t)>& after_step,
                  const std::vector<AlarmRule>& alarms) {
    trainer.validate(model.data_parallel_size());
    return TrainingRun(model, data, trainer, schedule, optimizer, alarms)
        .run(config_json, after_step);
}

double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size) {
    const std::int64_t available = data.validation_sequences();
    const std::int64_t count = sequences == 0 ? available : std::min(sequences, available);
    // A contiguous part for each data-parallel rank; parts may differ by one sequence.
    const std::int64_t ranks = model.data_parallel_size(), rank = model.data_parallel_rank();
    const std::int64_t end = count * (rank + 1) / ranks;
    double sum = 0.0;
    for (std::int64_t first = count * rank / ranks; first < end; first += micro_batch_size) {
        std::vector<std::int64_t> batch;
        for (std::int64_t i = first; i < std::min(end, first + micro_batch_size); ++i) {
            batch.push_back(i * available / count);
        }
        sum += static_cast<double>(batch.size()) * model.evaluate(data.validation_batch(batch));
    }
    return model.data_parallel_mean(sum) * static_cast<double>(ranks) / static_cast<double>(count);
}

}  // namespace evenkeel
