#include "framework/training/run_record.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "framework/error.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"

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

}  // namespace

RunRecorder::RunRecorder(TrainableModel& model,
                         const TrainerConfig& config,
                         const std::vector<AlarmRule>& alarms)
    : model_(model),
      config_(config),
      teraflops_of_a_token_(1e-12 * model.flops_per_token(config.seq_len)),
      board_(alarms, config.steps),
      start_(Clock::now()) {}

double RunRecorder::tflops_per_rank(double tokens_per_second) const {
    return teraflops_of_a_token_ * tokens_per_second / model_.ranks();
}

void RunRecorder::begin(std::int64_t first_step,
                        std::int64_t end_step,
                        const std::string& config_json) {
    first_step_ = first_step;
    end_step_ = end_step;
    config_json_ = config_json;
    if (model_.is_main_rank()) unless_refused([&] { open_files(); });
    start_ = Clock::now();
}

void RunRecorder::open_files() {
    if (!config_json_.empty()) {
        write_file_atomically(config_.run_dir + "/config.json", config_json_);
        config_json_.clear();
    }
    if (metrics_ == nullptr) {
        metrics_ = std::make_unique<MetricWriter>(config_.run_dir, first_step_ + 1);
    }
}

// A full disk is no reason to end a training whose state is elsewhere.
template <typename F>
void RunRecorder::unless_refused(F&& write) {
    try {
        write();
        if (is_refused_) log_info("records are written again");
        is_refused_ = false;
    } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;
        if (!is_refused_) {
            log_warning(concat("what the run says of itself cannot be written: ", error.what(),
                               "; the training goes on, and the next record tries again"));
        }
        is_refused_ = true;
    }
}

void RunRecorder::write(const MetricRecord& record) {
    if (!model_.is_main_rank()) return;
    unless_refused([&] {
        open_files();
        metrics_->write(record);
    });
}

bool RunRecorder::is_evaluated(std::int64_t step) const {
    return metrics_ != nullptr && metrics_->has_kept(step, "validation_loss");
}

void RunRecorder::record_evaluation(std::int64_t step, double validation_loss) {
    if (!model_.is_main_rank()) return;
    write({step, {{"validation_loss", validation_loss}}, {}, {}});
    log_info(concat("step ", step, "  validation loss ", fixed(validation_loss, 4),
                    ", made up: the run had ended before this evaluation"));
}

void RunRecorder::record_non_finite(std::int64_t step, const StepOutcome& outcome) {
    write({step,
           {{"loss", outcome.loss}, {"lr", outcome.lr}, {"grad_norm", outcome.grad_norm}},
           {},
           {}});
}

void RunRecorder::show_progress(const MetricRecord& record) {
    const bool last = record.step == end_step_;
    bool stays = false;  // on a terminal, where later lines take the place of others
    for (const auto& [name, value] : record.scalars) stays = stays || name == "validation_loss";
    if (!last && !stays && !log_to_terminal() && seconds_since(last_shown_) < 2.0) return;
    last_shown_ = Clock::now();
    std::string line = concat("step ", record.step, "/", config_.steps);
    for (const auto& [name, value] : record.scalars) {
        if (name == "loss") line += "  loss " + fixed(value, 4);
        if (name == "tokens_per_second") line += "  " + fixed(value, 0) + " tokens/s";
        if (name == "exposed_communication") line += "  waits " + fixed(100.0 * value, 1) + " %";
        if (name == "max_logit_max") line += "  max logit " + fixed(value, 2);
        if (name == "max_logit_uncapped_max") line += " (" + fixed(value, 2) + " uncapped)";
        if (name == "entropy_mean") line += "  entropy " + fixed(value, 2);
        if (name == "validation_loss") line += "  validation loss " + fixed(value, 4);
    }
    const double per_step = seconds_since(start_) / static_cast<double>(record.step - first_step_);
    line += "  left " + duration(per_step * static_cast<double>(end_step_ - record.step));
    log_progress(line, last || stays);
}

void RunRecorder::judge(const StepOutcome& outcome) {
    grad_norm_deviations_ =
        std::max(grad_norm_deviations_, grad_norm_deviation_.add(outcome.grad_norm));
    grad_norm_deviations_lasting_ =
        std::max(grad_norm_deviations_lasting_, grad_norm_deviation_.lasting());
    loss_spikes_.add(outcome.loss);
    grad_norm_spikes_.add(outcome.grad_norm);
}

// The same on all ranks: the numbers that rules look at are. Returns the severest action asked for.
AlarmAction RunRecorder::check_alarms(MetricRecord& record) {
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

AlarmAction RunRecorder::record(const RunState& state,
                                const StepOutcome& outcome,
                                std::optional<double> validation_loss,
                                bool with_tables) {
    MetricRecord record;
    record.step = state.step;
    const double rate = static_cast<double>(config_.batch_size * config_.seq_len) / outcome.seconds;
    record.scalars = {{"loss", outcome.loss},
                      {"lr", outcome.lr},
                      {"grad_norm", outcome.grad_norm},
                      {"tokens_per_second", rate},
                      {"tflops_per_rank", tflops_per_rank(rate)}};
    if (const double exposed = outcome.exposed_seconds(); exposed > 0.0) {
        record.scalars.emplace_back("exposed_communication", exposed / outcome.seconds);
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
    record.scalars.emplace_back("grad_norm_deviations_lasting",
                                std::exchange(grad_norm_deviations_lasting_, 0.0));
    record.scalars.emplace_back("loss_spike_score", loss_spikes_.percent());
    record.scalars.emplace_back("grad_norm_spike_score", grad_norm_spikes_.percent());
    record.scalars.emplace_back("skipped", static_cast<double>(state.step - state.updates));
    if (config_.skip_outliers_sigma > 0.0) {
        record.scalars.emplace_back("outliers", static_cast<double>(state.recent.outliers));
    }
    // Not the step's own number.
    if (!config_.skip_batches.empty() || state.sample != state.step * config_.batch_size) {
        record.scalars.emplace_back("batch",
                                    static_cast<double>(state.sample / config_.batch_size));
    }
    // What is not finite is trainer.non_finite's affair.
    const AlarmAction action =
        outcome.skip == StepOutcome::Skip::kNonFinite ? AlarmAction::kNone : check_alarms(record);
    if (!model_.is_main_rank()) return action;
    write(record);
    show_progress(record);
    return action;
}

}  // namespace evenkeel
