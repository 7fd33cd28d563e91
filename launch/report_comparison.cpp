#include "launch/report_comparison.h"

#include <algorithm>
#include <map>

#include "framework/json.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

void append_leaves(const std::string& path,
                   const Json& section,
                   std::map<std::string, Json>& out,
                   std::vector<std::string>& order) {
    for (const auto& [key, value] : section.items()) {
        const std::string name = path.empty() ? key : path + "." + key;
        if (value.is_object()) {
            append_leaves(name, value, out, order);
        } else {
            out[name] = value;
            order.push_back(name);
        }
    }
}

// Whether both summaries have all of these keys, with the same values.
enum class Alike { kYes, kNo, kUnknown };
Alike compare_keys(const Json& a, const Json& b, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
        const bool known = a.is_object() && b.is_object() && a.contains(key) && b.contains(key);
        if (!known) return Alike::kUnknown;
        if (a.at(key) != b.at(key)) return Alike::kNo;
    }
    return Alike::kYes;
}

}  // namespace

std::vector<Setting> settings_of(RunConfig config) {
    RunConfig standard;
    std::map<std::string, Json> values, defaults;
    std::vector<std::string> order, ignored;
    append_leaves("", Json::parse(to_json(config)), values, order);
    append_leaves("", Json::parse(to_json(standard)), defaults, ignored);
    const auto text = [](const Json& value) {
        return value.is_string() ? value.get<std::string>() : value.dump();
    };
    std::vector<Setting> settings;
    for (const std::string& path : order) {
        settings.push_back({path, text(values[path]), text(defaults[path])});
    }
    return settings;
}

std::string loss_unit(const RunConfig& config) {
    return config.data.has_tokens() ? "nats per token" : "nats per byte";
}

RunDifferences differences(const std::string& run,
                           const RunConfig& run_config,
                           const Json& run_summary,
                           const std::string& other,
                           const RunConfig& other_config,
                           const Json& other_summary) {
    const std::string unit = loss_unit(run_config), other_unit = loss_unit(other_config);
    EVENKEEL_CHECK_CODE(unit == other_unit, ErrorCode::kConfig, "report", "losses of ", run,
                        " are ", unit, ", those of ", other, " ", other_unit,
                        ": want two runs of one kind of data");
    RunDifferences found;
    // Of which settings may say nothing: parallel.data_parallel takes what there is.
    if (compare_keys(run_summary, other_summary, {"ranks"}) == Alike::kNo) {
        found.settings.push_back(
            {"ranks", run_summary.at("ranks").dump(), other_summary.at("ranks").dump()});
    }
    const std::vector<Setting> mine = settings_of(run_config), theirs = settings_of(other_config);
    bool other_paths = false;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const std::string& path = mine[i].path;
        if (path == "trainer.run_dir" || path == "trainer.resume") continue;
        if (mine[i].value == theirs[i].value) continue;
        found.settings.push_back({path, mine[i].value, theirs[i].value});
        other_paths = other_paths || path == "data.path";
    }
    const bool tokens = run_config.data.has_tokens();
    const std::vector<std::string> lengths =
        tokens ? std::vector<std::string>{"train_tokens", "validation_tokens"}
               : std::vector<std::string>{"train_bytes", "validation_bytes", "unigram_entropy",
                                          "bigram_entropy"};
    const Alike alike = compare_keys(run_summary, other_summary, lengths);
    const bool same_by_name = !other_paths && alike != Alike::kNo;
    // A text's lengths and entropies are hardly another's; of tokens lengths alone say little.
    const bool same_by_numbers = alike == Alike::kYes && !tokens;
    if (!same_by_name && !same_by_numbers) {
        found.data = concat("The runs did not have the same data",
                            other_paths ? "" : ", although it has one name",
                            ": part of what their losses differ by is the data's.");
    }
    return found;
}

std::string text_of(const RunDifferences& found, const std::string& run, const std::string& other) {
    std::string text = found.data.empty() ? "" : found.data + "\n";
    if (found.settings.empty()) return text + "settings: the same\n";
    std::size_t path_width = 0, value_width = 0;
    for (const RunDifferences::One& one : found.settings) {
        path_width = std::max(path_width, one.path.size());
        value_width = std::max(value_width, one.run.size());
    }
    text += concat("settings that differ, ", run, " and ", other, ":\n");
    const auto quoted = [](const std::string& value) { return value.empty() ? "\"\"" : value; };
    for (const RunDifferences::One& one : found.settings) {
        const std::string value = quoted(one.run);
        text += concat("  ", one.path, std::string(path_width + 2 - one.path.size(), ' '), value,
                       std::string(std::max(value_width, value.size()) + 2 - value.size(), ' '),
                       quoted(one.other), "\n");
    }
    return text;
}

Json to_json(const RunDifferences& found) {
    Json settings = Json::object();
    for (const RunDifferences::One& one : found.settings) {
        settings[one.path] = {one.run, one.other};
    }
    return {{"same_data", found.data.empty()}, {"settings_that_differ", settings}};
}

PageTable table_of(const RunDifferences& found, const std::string& run, const std::string& other) {
    PageTable table;
    table.title = "Settings that differ";
    if (found.settings.empty()) table.note = "None, but for the directory.";
    table.header = {"setting", run, other};
    table.words = {1, 2};
    for (const RunDifferences::One& one : found.settings) {
        table.rows.push_back({one.path, one.run, one.other});
    }
    return table;
}

}  // namespace evenkeel
