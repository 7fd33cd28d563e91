// What is said of a run while it goes on: records, alarms and the line of progress. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/training/alarm.h"
#include "framework/training/metrics.h"
#include "framework/training/run_state.h"
#include "framework/training/spikes.h"
#include "framework/training/trainable_model.h"
#include "framework/training/trainer_config.h"
#include "framework/training/training_step.h"

namespace evenkeel {

class RunRecorder {
  public:
    // All of them must outlive it.
    RunRecorder(TrainableModel& model,
                const TrainerConfig& config,
                const std::vector<AlarmRule>& alarms);

    AlarmBoard& board() { return board_; }
    // The model's operations, 10^12 a second, at that rate of all ranks.
    double tflops_per_rank(double tokens_per_second) const;
    const std::string& last_alarm() const {
        return last_alarm_;
    }  // the line of the last one raised

    // Begins the run's clock; the main rank, which alone writes, writes config.json and goes on from the records up to
    // first_step. What cannot be written, then or later, is a warning, and tried again with the next record.
    void begin(std::int64_t first_step, std::int64_t end_step, const std::string& config_json);
    // Every step, recorded or not.
    void judge(const StepOutcome& outcome);
    // Of the step that `state` has just done. Returns the severest action asked for. Collective.
    AlarmAction record(const RunState& state,
                       const StepOutcome& outcome,
                       std::optional<double> validation_loss,
                       bool with_tables);
    // Whether the step that the run resumes at has been evaluated. Of the main rank; false on others.
    bool is_evaluated(std::int64_t step) const;
    // Of an evaluation that an earlier start of the run did not get to.
    void record_evaluation(std::int64_t step, double validation_loss);
    // Of a step that ends the run because a number is not finite.
    void record_non_finite(std::int64_t step, const StepOutcome& outcome);

  private:
    AlarmAction check_alarms(MetricRecord& record);
    void show_progress(const MetricRecord& record);
    void open_files();
    void write(const MetricRecord& record);
    template <typename F>
    void unless_refused(F&& write);

    TrainableModel& model_;
    const TrainerConfig& config_;
    const double teraflops_of_a_token_;
    AlarmBoard board_;
    std::string last_alarm_;
    Deviation grad_norm_deviation_{128, 64, 6.0};
    double grad_norm_deviations_ = 0.0;          // the largest since the last record
    double grad_norm_deviations_lasting_ = 0.0;  // the same, of Deviation::lasting
    SpikeScore loss_spikes_, grad_norm_spikes_;
    std::unique_ptr<MetricWriter> metrics_;  // main rank only
    std::string config_json_;                // "": written
    bool is_refused_ = false;                // the last attempt to write
    std::int64_t first_step_ = 0, end_step_ = 0;
    std::chrono::steady_clock::time_point start_, last_shown_{};
};

}  // namespace evenkeel
