#include "framework/training/run_state.h"

#include <charconv>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/json_depth.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

// (The library would convert any number and true, undefined where it does not fit.)
std::int64_t integer(const Json& json, const char* key) {
    const Json& value = json.at(key);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 != 0);
    EVENKEEL_CHECK(fits, key, "got no integer");
    return value.get<std::int64_t>();
}

std::uint64_t parse_fingerprint(const std::string& text) {
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
    EVENKEEL_CHECK(error == std::errc() && stop == end, "data_fingerprint",
                   "got no hexadecimal number");
    return value;
}

RecentSteps parse_recent(const Json& json) {
    RecentSteps recent;
    recent.losses = json.at("losses").get<std::deque<double>>();
    recent.grad_norms = json.at("grad_norms").get<std::deque<double>>();
    recent.outliers = integer(json, "outliers");
    recent.outliers_in_row = integer(json, "outliers_in_row");
    EVENKEEL_CHECK(recent.losses.size() == recent.grad_norms.size() &&
                       recent.losses.size() <= kOutlierWindow && recent.outliers_in_row >= 0 &&
                       recent.outliers_in_row <= recent.outliers,
                   "recent", "got ", recent.losses.size(), " losses and ", recent.grad_norms.size(),
                   " gradient norms after ", recent.outliers_in_row, " of ", recent.outliers,
                   " outliers");
    return recent;
}

std::string shown(const Json& json, const std::string& key) {
    return json.contains(key) ? json[key].dump() : "nothing";
}

// What is said of a value in two places.
using Words = std::string (*)(const std::string& a, const std::string& b);

std::string got_and_want(const std::string& got, const std::string& want) {
    return concat("got ", got, ", want ", want);
}

std::string before_and_now(const std::string& before, const std::string& now) {
    return concat(before, " before, ", now, " now");
}

void append_difference(
    const Json& a, const Json& b, const std::string& prefix, Words words, std::string& text) {
    const auto compare = [&](const std::string& key) {
        if (a.contains(key) && b.contains(key) && a[key].is_object() && b[key].is_object()) {
            append_difference(a[key], b[key], prefix + key + ".", words, text);
        } else if (shown(a, key) != shown(b, key)) {
            text += concat(text.empty() ? "" : "; ", prefix, key, ": ",
                           words(shown(a, key), shown(b, key)));
        }
    };
    for (const auto& item : a.items()) compare(item.key());
    for (const auto& item : b.items()) {
        if (!a.contains(item.key())) compare(item.key());
    }
}

std::string difference_of(const std::string& first, const std::string& second, Words words) {
    const Json a = Json::parse(first, nullptr, false), b = Json::parse(second, nullptr, false);
    if (!a.is_object() || !b.is_object()) return first == second ? "" : words(first, second);
    std::string text;
    append_difference(a, b, "", words, text);
    return text;
}

std::string data_difference(const RunState& saved, const RunState& now) {
    const std::string named = saved.data == "{}" ? "" : json_difference(now.data, saved.data);
    return named.empty()
               ? concat("got fingerprint ", std::hex, now.fingerprint, ", want ", saved.fingerprint)
               : named;
}

}  // namespace

std::int64_t batch_size_of(const std::string& settings) {
    const Json json = Json::parse(settings, nullptr, false);
    const bool told =
        json.is_object() && json.contains("batch_size") && json["batch_size"].is_number_integer();
    return told ? json["batch_size"].get<std::int64_t>() : 0;
}

std::string json_difference(const std::string& got, const std::string& want) {
    return difference_of(got, want, got_and_want);
}

std::string json_changes(const std::string& before, const std::string& now) {
    return difference_of(before, now, before_and_now);
}

std::string to_json(const RunState& state) {
    Json json;
    json["checkpoint_format"] = 2;  // with a manifest beside it
    json["step"] = state.step;
    json["updates"] = state.updates;
    json["updates_before"] = state.updates_before;
    json["sample"] = state.sample;
    json["seed"] = state.seed;
    json["seq_len"] = state.seq_len;
    json["data_fingerprint"] = concat(std::hex, state.fingerprint);
    json["data"] = Json::parse(state.data);
    json["model"] = Json::parse(state.model);
    json["settings"] = Json::parse(state.settings);
    json["recent"] = {{"losses", state.recent.losses},
                      {"grad_norms", state.recent.grad_norms},
                      {"outliers", state.recent.outliers},
                      {"outliers_in_row", state.recent.outliers_in_row}};
    json["alarms"] = Json::parse(state.alarms);
    return json.dump(2) + "\n";
}

RunState parse_run_state(const std::string& text, const std::string& origin) {
    try {
        check_json_depth("resume", text, origin);
        const Json json = Json::parse(text);
        RunState state;
        state.step = integer(json, "step");
        state.updates = integer(json, "updates");
        if (json.contains("updates_before")) {
            state.updates_before = integer(json, "updates_before");
        }
        state.sample = integer(json, "sample");
        state.seed = integer(json, "seed");
        state.seq_len = integer(json, "seq_len");
        state.fingerprint = parse_fingerprint(json.at("data_fingerprint").get<std::string>());
        if (json.contains("data")) state.data = json.at("data").dump();
        state.model = json.at("model").dump();
        state.settings = json.at("settings").dump();
        if (json.contains("alarms")) state.alarms = json.at("alarms").dump();
        if (json.contains("recent")) state.recent = parse_recent(json.at("recent"));
        constexpr std::int64_t kMost = std::int64_t{1} << 62;
        EVENKEEL_CHECK(0 <= state.updates && state.updates <= state.step && state.step < kMost,
                       "step", "got ", state.step, " with ", state.updates, " updates");
        EVENKEEL_CHECK(0 <= state.updates_before && state.updates_before < kMost, "updates_before",
                       "got ", state.updates_before);
        EVENKEEL_CHECK(0 <= state.sample && state.sample < kMost, "sample", "got ", state.sample);
        return state;
    } catch (const std::exception& error) {
        throw_error(ErrorCode::kIo, "resume",
                    concat(origin, ": got a damaged run state (", error.what(), ")"));
    }
}

void check_resumable(const RunState& saved, const RunState& now, const std::string& origin) {
    const std::string models = json_difference(saved.model, now.model);
    EVENKEEL_CHECK_CODE(models.empty(), ErrorCode::kConfig, "resume", origin,
                        " is a checkpoint of another model: ", models,
                        " (change the model's configuration, or trainer.run_dir)");
    EVENKEEL_CHECK_CODE(saved.seed == now.seed, ErrorCode::kConfig, "resume", "trainer.seed: got ",
                        now.seed, ", want ", saved.seed, " as in ", origin);
    EVENKEEL_CHECK_CODE(saved.seq_len == now.seq_len, ErrorCode::kConfig, "resume",
                        "trainer.seq_len: got ", now.seq_len, ", want ", saved.seq_len, " as in ",
                        origin);
    EVENKEEL_CHECK_CODE(saved.fingerprint == now.fingerprint, ErrorCode::kConfig, "resume", origin,
                        " was trained on other data: ", data_difference(saved, now),
                        " (it follows from the files that data.path and data.validation_path name, "
                        "and from data.validation_fraction, data.weights, data.packing and "
                        "data.end_of_document: change these back, or trainer.run_dir)");
}

}  // namespace evenkeel
