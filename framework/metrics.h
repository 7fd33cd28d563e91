// Numbers of a run: one JSON object a line in metrics.jsonl, and the same scalars as a TensorBoard
// event file.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

// Appends to DIR/metrics.jsonl and DIR/events.out.tfevents.*; flushes each record. With resume_step >= 0,
// records of that step and later are dropped from metrics.jsonl first.
class MetricWriter {
  public:
    MetricWriter(const std::string& directory, std::int64_t resume_step = -1);
    ~MetricWriter();
    void write(const MetricRecord& record);

  private:
    std::ofstream json_;
    std::ofstream events_;
    std::string json_path_, events_path_;
};

// A record as one line of JSON. Non-finite numbers become the strings "nan", "inf" and "-inf".
std::string to_json_line(const MetricRecord& record);

// All records of a metrics.jsonl; throws kIo naming file and line.
std::vector<MetricRecord> read_metrics(const std::string& path);

}  // namespace evenkeel
