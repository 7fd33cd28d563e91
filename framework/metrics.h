// Numbers of a run: one JSON object a line in metrics.jsonl, and the same scalars as a TensorBoard
// event file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/file.h"

namespace evenkeel {

// One number per (row, column): rows are layers, columns are heads.
struct MetricTable {
    std::string name;  // "max_logit"
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::vector<float> values;  // [rows, columns]
};

struct MetricRecord {
    std::int64_t step = 0;
    std::vector<std::pair<std::string, double>> scalars;  // order is kept
    std::vector<MetricTable> tables;
};

// Appends to DIR/metrics.jsonl and to a new DIR/events.out.tfevents.*; every record is handed to the
// system before write returns. With resume_step >= 0, records of that step and later are dropped from
// metrics.jsonl first, and so is a last line that an interrupted run left unfinished; TensorBoard is told
// to forget them. In the event file a table is the maximum and the mean of each of its rows. Throws kIo
// naming the file.
class MetricWriter {
  public:
    explicit MetricWriter(const std::string& directory, std::int64_t resume_step = -1);
    void write(const MetricRecord& record);

  private:
    File json_, events_;
};

// A record as one line of JSON, without the line's end: {"step":3,"loss":2.5,"max_logit":[[1,2],[3,4]]}.
// Non-finite numbers become the strings "nan", "inf" and "-inf". Throws kInvalidArgument when two have the
// same name or a table's size is wrong.
std::string to_json_line(const MetricRecord& record);

// All records of a metrics.jsonl; throws kIo naming file and line. A last line that is unfinished or no
// record is what an interrupted run leaves: it is left out, with a warning.
std::vector<MetricRecord> read_metrics(const std::string& path);

}  // namespace evenkeel
