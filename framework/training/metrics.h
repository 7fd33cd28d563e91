// Numbers of a run: one JSON object a line in metrics.jsonl, and the same scalars as a TensorBoard
// event file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/storage/file.h"

namespace evenkeel {

// One number per (row, column): rows are layers, columns are heads.
struct MetricTable {
    std::string name;  // "max_logit"
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::vector<float> values;  // [rows, columns]
    // Which scalar of a record stands for all of it: NAME_mean, NAME_max or none. Not in metrics.jsonl.
    enum class Summary { kNone, kMean, kMax } summary = Summary::kNone;
};

// What an alarm does. In order of severity.
enum class AlarmAction {
    kNone,        // the rule is off
    kWarn,        // say so
    kCheckpoint,  // and write a checkpoint
    kEnd,         // and write a checkpoint and end the run with exit status 5
};
const char* name_of(AlarmAction action);

// An alarm (framework/training/alarm.h) that was raised or is over.
struct AlarmEvent {
    std::string alarm;
    std::string metric;  // the scalar or table that is out of bounds
    bool raised = true;
    std::int64_t row = -1, column = -1;  // the worst place of a table; -1: none
    double value = 0.0, threshold = 0.0;
    std::int64_t since = 0;          // first step of those that broke the rule
    std::int64_t count = 0, of = 1;  // numbers that broke it, of how many
    AlarmAction action = AlarmAction::kWarn;
    std::string text;  // the line that was printed
};

struct MetricRecord {
    std::int64_t step = 0;
    std::vector<std::pair<std::string, double>> scalars;  // order is kept
    std::vector<MetricTable> tables;
    std::vector<AlarmEvent> alarms;  // "alarms" in metrics.jsonl, where there are any
};

// Appends to DIR/metrics.jsonl and to a new DIR/events.out.tfevents.*; every record is handed to the
// system before write returns. With resume_step >= 0, records of that step and later are dropped from
// metrics.jsonl first, and so are a last line that an interrupted run left unfinished and, with a warning, lines that
// are no records, after the file as it was has been copied to metrics.damaged.jsonl (.2, ..); TensorBoard is told
// to forget them. In the event file a table is the minimum, the mean and the maximum of each of its rows, and a
// picture, heads/NAME, a pixel a cell, whose colours go from the smallest to the largest number that this writer has
// been given for it. Throws kIo naming the file; what a failed write has left of a record is cut off again.
class MetricWriter {
  public:
    explicit MetricWriter(const std::string& directory, std::int64_t resume_step = -1);
    void write(const MetricRecord& record);
    // Whether the records of that step that a resumed run has kept have the scalar; of their last step only.
    bool has_kept(std::int64_t step, const std::string& scalar) const;

  private:
    File json_, events_;
    // The smallest and the largest finite number of each table so far.
    std::map<std::string, std::pair<float, float>> ranges_;
    MetricRecord last_kept_;  // scalars of all records of that step
};

// A record as one line of JSON, without the line's end: {"step":3,"loss":2.5,"max_logit":[[1,2],[3,4]]}.
// Non-finite numbers become the strings "nan", "inf" and "-inf". Throws kInvalidArgument when two have the
// same name or a table's size is wrong.
std::string to_json_line(const MetricRecord& record);

// All records of a metrics.jsonl; throws kIo naming file and line. A last line that is unfinished or no
// record is what an interrupted run leaves: it is left out, with a warning.
std::vector<MetricRecord> read_metrics(const std::string& path);

}  // namespace evenkeel
