// Rules over the numbers of a run's records, and what to do when one is broken. A rule names a scalar or a
// table; nothing here knows what they mean. docs/telemetry.md tells which rules a training run has.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "framework/config.h"
#include "framework/error.h"
#include "framework/training/metrics.h"

namespace evenkeel {

// What a configuration says of a rule.
struct AlarmSetting {
    AlarmAction action = AlarmAction::kWarn;
    double threshold = 0.0;
    std::int64_t records =
        1;  // in a row that must break the rule, or keep it for the alarm to clear
    void visit_fields(ConfigVisitor& v);
    // Throws kConfig naming `path` and the key.
    void validate(const std::string& path) const;
};

struct AlarmRule {
    enum class Test {
        kAbove,         // value > threshold; NaN is
        kBelow,         // value < threshold; NaN is
        kBelowFalling,  // the same, and at first the line fitted to the last kAlarmWindow records falls
        kDrift,         // |value| is `threshold` times its first value's, or that part of it
        kDoubling,  // ln value grows, by a line fitted to the last kAlarmWindow records, so fast that the
                    // value doubles within `threshold` times the steps that are left
    };
    std::string name;    // "max_logit": of its setting; rules that share one differ in their metric
    std::string metric;  // a scalar or table of a record; one without it leaves the rule as it was
    Test test = Test::kAbove;
    AlarmSetting setting;
    bool of_row_means = false;  // of a table: the mean of each row in place of each number
    std::vector<bool> rows;     // of a table: which are watched; empty: all
    double least = 0.0;         // kDoubling: smaller values may grow
    std::string row = "row", column = "column";  // what messages call a place in a table
    std::string advice;                          // what to read, for the message
};
// What a run throws that an alarm ends; its code is kAlarm, the exit status 5.
class AlarmError : public Error {
  public:
    explicit AlarmError(const std::string& message) : Error(ErrorCode::kAlarm, message) {}
};

inline constexpr std::size_t kAlarmWindow = 16;       // records
inline constexpr std::size_t kAlarmLeastRecords = 8;  // for a line to be fitted

class AlarmBoard {
  public:
    // steps: of the whole run.
    AlarmBoard(std::vector<AlarmRule> rules, std::int64_t steps);

    // Takes in a record. Returns what changed: an alarm is raised when the first of a rule's numbers has
    // broken it often enough, and cleared when the last of them has kept it as often. The same records give
    // the same events.
    std::vector<AlarmEvent> check(const MetricRecord& record);

    std::int64_t active() const;  // alarms that are raised and not cleared
    bool empty() const { return watches_.empty(); }

    // First values and alarms so far, as JSON, for a checkpoint. Fitted lines begin anew after restore.
    std::string state() const;
    void restore(const std::string&
                     json);  // rules are known by name and metric; throws kIo for what is no state

  private:
    // One number of a rule.
    struct Cell {
        std::int64_t broken = 0, kept = 0;  // records in a row
        std::int64_t since = 0;             // first step of those that broke it
        bool active = false;
        bool is_idle() const { return broken == 0 && !active; }
    };
    struct Watch {
        AlarmRule rule;
        std::int64_t rows = 0, columns = 0;
        std::vector<double> first;
        std::vector<Cell> cells;
        std::deque<std::pair<double, std::vector<double>>> history;  // step, values
        bool active = false;
        bool is_watched(std::size_t cell) const;
    };
    bool read(const MetricRecord& record, Watch& watch, std::vector<double>& values) const;
    bool is_broken(const Watch& watch, std::size_t cell, double value, std::int64_t step) const;
    AlarmEvent event_of(const Watch& watch,
                        const std::vector<double>& values,
                        bool raised,
                        std::int64_t step) const;

    std::vector<Watch> watches_;
    std::int64_t steps_;
};

}  // namespace evenkeel
