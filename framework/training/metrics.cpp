#include "framework/training/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <stdexcept>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/heat_map.h"
#include "framework/training/tensorboard.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kActionNames[] = {"none", "warn", "checkpoint", "end"};

double wall_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The shortest digits that read back as the same float or double.
template <typename Float>
std::string to_text(Float value) {
    if (std::isnan(value)) return "\"nan\"";
    if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
    if (value == 0.0 && std::signbit(value)) return "-0.0";  // "-0" would be an integer
    char buffer[32];
    return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

double to_number(const Json& value) {
    if (value.is_number()) return value.get<double>();
    const auto& text = value.get_ref<const std::string&>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    throw_error(ErrorCode::kIo, "metrics", "got the string " + quoted(text) + ", want a number");
}

MetricTable to_table(const std::string& name, const Json& rows) {
    MetricTable table;
    table.name = name;
    table.rows = static_cast<std::int64_t>(rows.size());
    table.columns = rows.empty() ? 0 : static_cast<std::int64_t>(rows.front().size());
    for (const Json& row : rows) {
        EVENKEEL_CHECK_CODE(
            row.is_array() && static_cast<std::int64_t>(row.size()) == table.columns,
            ErrorCode::kIo, "metrics", name, ": want rows of one length");
        for (const Json& value : row) table.values.push_back(static_cast<float>(to_number(value)));
    }
    return table;
}

AlarmEvent to_alarm(const Json& json) {
    AlarmEvent event;
    event.alarm = json.at("alarm").get<std::string>();
    event.metric = json.at("metric").get<std::string>();
    event.raised = json.at("raised").get<bool>();
    event.row = json.value("row", std::int64_t{-1});
    event.column = json.value("column", std::int64_t{-1});
    event.value = to_number(json.at("value"));
    event.threshold = to_number(json.at("threshold"));
    event.since = json.at("since").get<std::int64_t>();
    event.count = json.at("count").get<std::int64_t>();
    event.of = json.at("of").get<std::int64_t>();
    const auto action = std::find(std::begin(kActionNames), std::end(kActionNames),
                                  json.at("action").get<std::string>());
    EVENKEEL_CHECK_CODE(action != std::end(kActionNames), ErrorCode::kIo, "metrics",
                        "got an unknown action");
    event.action = static_cast<AlarmAction>(action - std::begin(kActionNames));
    event.text = json.at("text").get<std::string>();
    return event;
}

std::string to_json(const AlarmEvent& event) {
    std::string text =
        concat("{\"alarm\":", quoted(event.alarm), ",\"metric\":", quoted(event.metric),
               ",\"raised\":", event.raised ? "true" : "false");
    if (event.row >= 0) text += concat(",\"row\":", event.row);
    if (event.column >= 0) text += concat(",\"column\":", event.column);
    return text + concat(",\"value\":", to_text(event.value),
                         ",\"threshold\":", to_text(event.threshold), ",\"since\":", event.since,
                         ",\"count\":", event.count, ",\"of\":", event.of,
                         ",\"action\":", quoted(name_of(event.action)),
                         ",\"text\":", quoted(event.text), "}");
}

MetricRecord to_record(const std::string& line) {
    const Json json = Json::parse(line);
    MetricRecord record;
    record.step = json.at("step").get<std::int64_t>();
    for (const auto& [name, value] : json.items()) {
        if (name == "step") continue;
        if (name == "alarms" && value.is_array()) {
            for (const Json& event : value) record.alarms.push_back(to_alarm(event));
        } else if (value.is_array()) {
            record.tables.push_back(to_table(name, value));
        } else {
            record.scalars.emplace_back(name, to_number(value));
        }
    }
    return record;
}

void check_record(const MetricRecord& record) {
    std::set<std::string> names = {"step", "alarms"};
    const auto check_new = [&](const std::string& name) {
        EVENKEEL_CHECK(names.insert(name).second, "metrics", "got the name ", name,
                       " twice in one record");
    };
    for (const auto& [name, value] : record.scalars) check_new(name);
    for (const MetricTable& table : record.tables) {
        check_new(table.name);
        EVENKEEL_CHECK(
            table.rows >= 0 && table.columns >= 0 &&
                static_cast<std::int64_t>(table.values.size()) == table.rows * table.columns,
            "metrics", table.name, ": got ", table.values.size(), " values, want ", table.rows,
            " x ", table.columns);
    }
}

// The records of a file; on_bad is told of each line that is none, and whether it is the last.
template <typename F>
std::vector<MetricRecord> read_records(const std::string& path, F&& on_bad) {
    const std::string text = read_file(path);
    std::vector<MetricRecord> records;
    std::size_t begin = 0, number = 1;
    for (std::size_t end; begin < text.size(); begin = end + 1, ++number) {
        end = std::min(text.find('\n', begin), text.size());
        try {
            if (end == text.size()) throw std::runtime_error("the line has no end");
            records.push_back(to_record(text.substr(begin, end - begin)));
        } catch (const std::exception& e) {
            on_bad(concat(path, ":", number, ": not a record: ", e.what()), end + 1 >= text.size());
        }
    }
    return records;
}

void warn_of_torn_line(const std::string& what) {
    log_warning(concat("[metrics] ", what, "; an interrupted run left it, it is dropped"));
}

// Keeps metrics.jsonl as it is under the name metrics.damaged.jsonl (.2, ..).
std::string keep_damaged(const std::string& path) {
    const std::string stem = path.substr(0, path.rfind(".jsonl"));
    std::string name = stem + ".damaged.jsonl";
    for (int i = 2; std::filesystem::exists(name); ++i)
        name = concat(stem, ".damaged.", i, ".jsonl");
    std::error_code error;
    std::filesystem::copy_file(path, name, error);
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "metrics", name,
                        ": cannot write: ", error.message());
    return name;
}

// The lines that a resumed run keeps; `last` becomes what they say of the last step. Lines that are no records are no
// reason not to go on.
std::string records_before(const std::string& path, std::int64_t step, MetricRecord& last) {
    std::string kept, first_bad;
    std::size_t bad = 0;
    if (!std::filesystem::exists(path)) return kept;
    const auto records = read_records(path, [&](const std::string& what, bool is_last) {
        if (is_last) return warn_of_torn_line(what);
        if (bad++ == 0) first_bad = what;
    });
    if (bad > 0) {
        log_warning(concat("[metrics] ", first_bad,
                           bad > 1 ? concat("; and ", bad - 1, " more") : "",
                           "; dropped, and the file as it was is kept as ", keep_damaged(path)));
    }
    for (const MetricRecord& record : records) {
        if (record.step >= step) continue;
        kept += to_json_line(record) + "\n";
        if (record.step != last.step) last = {record.step, {}, {}, {}};
        last.scalars.insert(last.scalars.end(), record.scalars.begin(), record.scalars.end());
    }
    return kept;
}

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// Names sort in order of their making, which is the order TensorBoard reads them in.
std::string events_name(double now) {
    const auto microseconds = static_cast<std::int64_t>(now * 1e6);
    std::string fraction = std::to_string(microseconds % 1000000);
    fraction.insert(0, 6 - fraction.size(), '0');
    return concat("events.out.tfevents.", microseconds / 1000000, ".", fraction, ".", host_name(),
                  ".", ::getpid());
}

std::vector<std::pair<std::string, float>> tensorboard_scalars(const MetricRecord& record) {
    std::vector<std::pair<std::string, float>> scalars;
    for (const auto& [name, value] : record.scalars) {
        scalars.emplace_back(name, static_cast<float>(value));
    }
    for (const MetricTable& table : record.tables) {
        for (std::int64_t row = 0; row < table.rows && table.columns > 0; ++row) {
            const auto first = table.values.begin() + row * table.columns;
            const auto last = first + table.columns;
            double sum = 0.0;
            for (auto it = first; it != last; ++it) sum += *it;
            scalars.emplace_back(concat(table.name, "_max/layer_", row),
                                 *std::max_element(first, last));
            scalars.emplace_back(concat(table.name, "_min/layer_", row),
                                 *std::min_element(first, last));
            scalars.emplace_back(concat(table.name, "_mean/layer_", row),
                                 static_cast<float>(sum / static_cast<double>(table.columns)));
        }
    }
    return scalars;
}

// A picture of each table that has numbers; `ranges` comes to hold what the tables' numbers are between.
std::vector<PngImage> heat_maps(const MetricRecord& record,
                                std::map<std::string, std::pair<float, float>>& ranges) {
    std::vector<PngImage> images;
    for (const MetricTable& table : record.tables) {
        for (const float value : table.values) {
            if (!std::isfinite(value)) continue;
            auto& [low, high] = ranges.try_emplace(table.name, value, value).first->second;
            low = std::min(low, value);
            high = std::max(high, value);
        }
        const auto range = ranges.find(table.name);
        if (range == ranges.end() || table.values.empty()) continue;
        const auto [low, high] = range->second;
        images.push_back(
            {"heads/" + table.name, table.columns, table.rows, heat_map_png(table, low, high)});
    }
    return images;
}

void write_record(File& events, const std::string& event) {
    const std::string record = tfrecord(event);
    events.append_whole(record.data(), record.size());
}

}  // namespace

const char* name_of(AlarmAction action) { return kActionNames[static_cast<int>(action)]; }

std::string to_json_line(const MetricRecord& record) {
    check_record(record);
    std::string line = concat("{\"step\":", record.step);
    for (const auto& [name, value] : record.scalars) {
        line += concat(",", quoted(name), ":", to_text(value));
    }
    for (const MetricTable& table : record.tables) {
        line += concat(",", quoted(table.name), ":[");
        for (std::int64_t row = 0; row < table.rows; ++row) {
            line += row == 0 ? "[" : ",[";
            for (std::int64_t column = 0; column < table.columns; ++column) {
                line += column == 0 ? "" : ",";
                line += to_text(table.values[row * table.columns + column]);
            }
            line += "]";
        }
        line += "]";
    }
    for (std::size_t i = 0; i < record.alarms.size(); ++i) {
        line += (i == 0 ? ",\"alarms\":[" : ",") + to_json(record.alarms[i]);
    }
    return line + (record.alarms.empty() ? "}" : "]}");
}

std::vector<MetricRecord> read_metrics(const std::string& path) {
    return read_records(path, [](const std::string& what, bool is_last) {
        EVENKEEL_CHECK_CODE(is_last, ErrorCode::kIo, "metrics", what);
        warn_of_torn_line(what);
    });
}

MetricWriter::MetricWriter(const std::string& directory, std::int64_t resume_step) {
    const std::string json_path = directory + "/metrics.jsonl";
    if (resume_step >= 0) {
        write_file_atomically(json_path, records_before(json_path, resume_step, last_kept_));
    }
    json_ = File::append(json_path);
    const double now = wall_time();
    events_ = File::create(directory + "/" + events_name(now));
    write_record(events_, version_event(now));
    if (resume_step >= 0) write_record(events_, restart_event(now, resume_step));
}

bool MetricWriter::has_kept(std::int64_t step, const std::string& scalar) const {
    return last_kept_.step == step &&
           std::any_of(last_kept_.scalars.begin(), last_kept_.scalars.end(),
                       [&](const auto& entry) { return entry.first == scalar; });
}

void MetricWriter::write(const MetricRecord& record) {
    const std::string line = to_json_line(record) + "\n";
    json_.append_whole(line.data(), line.size());
    write_record(events_, scalars_event(wall_time(), record.step, tensorboard_scalars(record)));
    const std::vector<PngImage> images = heat_maps(record, ranges_);
    if (!images.empty()) write_record(events_, images_event(wall_time(), record.step, images));
}

}  // namespace evenkeel
