#include "framework/training/alarm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/json_depth.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kActionNames[] = {"none", "warn", "checkpoint", "end"};
// Of a saved state: more than the heads of any model, or the steps of any run.
constexpr std::int64_t kMostNumbers = 1 << 24;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

// By least squares; x in steps.
double slope(const std::vector<std::pair<double, double>>& points) {
    double x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
    const auto count = static_cast<double>(points.size());
    for (const auto& [px, py] : points) x += px / count, y += py / count;
    for (const auto& [px, py] : points) xx += (px - x) * (px - x), xy += (px - x) * (py - y);
    return xx > 0.0 ? xy / xx : 0.0;
}

bool looks_down(AlarmRule::Test test) {
    return test == AlarmRule::Test::kBelow || test == AlarmRule::Test::kBelowFalling;
}

std::string short_text(double value, int digits = 4) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    return text;
}

// Of a value in as many digits as tell it from the limit that it broke.
int telling_digits(double value, double limit) {
    constexpr int kAll = 17;
    int digits = 4;
    while (digits < kAll && value != limit &&
           short_text(value, digits) == short_text(limit, digits)) {
        ++digits;
    }
    return digits;
}

bool fits_a_line(AlarmRule::Test test) {
    return test == AlarmRule::Test::kBelowFalling || test == AlarmRule::Test::kDoubling;
}

// Whether a number is where, by its line, it may break a rule that fits one.
bool is_in_reach(const AlarmRule& rule, double value) {
    return rule.test == AlarmRule::Test::kDoubling ? value >= rule.least
                                                   : value < rule.setting.threshold;
}

// alarm max_logit: max_logit of layer 3 head 5 is 132.4, above 100, since step 120 (3 of 48); read ..
std::string to_text(const AlarmEvent& event, const AlarmRule& rule) {
    if (!event.raised) {
        return concat("alarm ", event.alarm, " (", event.metric, ") is over at step ", event.since);
    }
    std::string text = concat("alarm ", event.alarm, ": ", rule.metric);
    if (event.row >= 0) text += concat(" of ", rule.row, " ", event.row);
    if (event.column >= 0) text += concat(" ", rule.column, " ", event.column);
    text += " is " + short_text(event.value, telling_digits(event.value, event.threshold));
    const std::string limit = short_text(event.threshold);
    switch (rule.test) {
        case AlarmRule::Test::kAbove:
            text += ", above " + limit;
            break;
        case AlarmRule::Test::kBelow:
            text += ", below " + limit;
            break;
        case AlarmRule::Test::kBelowFalling:
            text += ", below " + limit + " and falling";
            break;
        case AlarmRule::Test::kDrift:
            text += ", more than " + limit + " times from where it began";
            break;
        case AlarmRule::Test::kDoubling:
            text += ", doubling in less than " + limit + " of the steps left";
            break;
    }
    text += concat(", since step ", event.since);
    if (event.of > 1) text += concat(" (", event.count, " of ", event.of, ")");
    return text + (rule.advice.empty() ? "" : "; read " + rule.advice);
}

// Of a saved state. (The library would convert any number, undefined where it does not fit.)
std::int64_t integer(const Json& value, std::int64_t most) {
    EVENKEEL_CHECK(value.is_number_unsigned() &&
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most),
                   "alarms", "got ", value.dump().substr(0, 40), ", want an integer from 0 to ",
                   most);
    return value.get<std::int64_t>();
}

// Rules of one setting may look at several numbers.
std::string key_of(const AlarmRule& rule) { return concat(rule.name, " of ", rule.metric); }

}  // namespace

void AlarmSetting::visit_fields(ConfigVisitor& v) {
    v.choice("action", action, kActionNames,
             "nothing, a warning, a checkpoint too, or a checkpoint and the end of the run");
    v.field("threshold", threshold, "what a number may be at most, or at least");
    v.field("records", records, "records in a row that must break the rule, or keep it to clear");
}

void AlarmSetting::validate(const std::string& path) const {
    EVENKEEL_CHECK_CODE(records >= 1, ErrorCode::kConfig, "alarms", path, ".records: got ", records,
                        ", want 1 or more");
    EVENKEEL_CHECK_CODE(std::isfinite(threshold) && threshold > 0.0, ErrorCode::kConfig, "alarms",
                        path, ".threshold: got ", threshold, ", want more than 0");
}

AlarmBoard::AlarmBoard(std::vector<AlarmRule> rules, std::int64_t steps) : steps_(steps) {
    for (AlarmRule& rule : rules) {
        if (rule.setting.action == AlarmAction::kNone) continue;
        for (const Watch& watch : watches_) {
            EVENKEEL_CHECK(key_of(watch.rule) != key_of(rule), "alarms", "got ", key_of(rule),
                           " twice");
        }
        Watch watch;
        watch.rule = std::move(rule);
        watches_.push_back(std::move(watch));
    }
}

// The rule's numbers in the record; false if it has none.
bool AlarmBoard::read(const MetricRecord& record, Watch& watch, std::vector<double>& values) const {
    values.clear();
    std::int64_t rows = 1, columns = 1;
    for (const auto& [name, value] : record.scalars) {
        if (name == watch.rule.metric) values = {value};
    }
    for (const MetricTable& table : record.tables) {
        if (table.name != watch.rule.metric) continue;
        values.assign(table.values.begin(), table.values.end());
        rows = table.rows, columns = table.columns;
        if (!watch.rule.of_row_means || columns == 0) continue;
        std::vector<double> means(static_cast<std::size_t>(rows), 0.0);
        for (std::size_t i = 0; i < values.size(); ++i) {
            means[i / static_cast<std::size_t>(columns)] +=
                values[i] / static_cast<double>(columns);
        }
        values = means, columns = 1;
    }
    if (values.empty()) return false;
    if (watch.cells.size() != values.size()) {  // the first record, or other tables than before
        watch.cells.assign(values.size(), {});
        watch.first.clear();
        watch.history.clear();
    }
    watch.rows = rows, watch.columns = columns;
    if (watch.first.empty() && watch.rule.test == AlarmRule::Test::kDrift) watch.first = values;
    watch.history.emplace_back(static_cast<double>(record.step), values);
    if (watch.history.size() > kAlarmWindow) watch.history.pop_front();
    return true;
}

bool AlarmBoard::Watch::is_watched(std::size_t cell) const {
    const std::size_t row = cell / static_cast<std::size_t>(std::max<std::int64_t>(columns, 1));
    return row >= rule.rows.size() || rule.rows[row];
}

bool AlarmBoard::is_broken(const Watch& watch,
                           std::size_t cell,
                           double value,
                           std::int64_t step) const {
    const AlarmRule& rule = watch.rule;
    const double threshold = rule.setting.threshold;
    const auto fitted = [&](auto&& of_value) {
        std::vector<std::pair<double, double>> points;
        for (const auto& [x, values] : watch.history)
            points.emplace_back(x, of_value(values[cell]));
        return points.size() < kAlarmLeastRecords ? 0.0 : slope(points);
    };
    switch (rule.test) {
        case AlarmRule::Test::kAbove:
            return !(value <= threshold);
        case AlarmRule::Test::kBelow:
            return !(value >= threshold);
        case AlarmRule::Test::kBelowFalling:
            return std::isnan(value) ||
                   (value < threshold &&
                    (watch.cells[cell].active || fitted([](double v) { return v; }) < 0.0));
        case AlarmRule::Test::kDrift: {
            const double first = std::abs(watch.first[cell]), now = std::abs(value);
            if (first == 0.0) return std::isnan(value);
            return !(now <= threshold * first) || now < first / threshold;
        }
        case AlarmRule::Test::kDoubling: {
            if (!(value >= rule.least)) return std::isnan(value);
            const double tiny = std::numeric_limits<double>::min();
            const double growth = fitted([&](double v) { return std::log(std::max(v, tiny)); });
            const double left = static_cast<double>(steps_ - step);
            return growth > 0.0 && std::log(2.0) / growth < threshold * left;
        }
    }
    return false;
}

AlarmEvent AlarmBoard::event_of(const Watch& watch,
                                const std::vector<double>& values,
                                bool raised,
                                std::int64_t step) const {
    AlarmEvent event;
    event.alarm = watch.rule.name;
    event.metric = watch.rule.metric;
    event.raised = raised;
    event.action = watch.rule.setting.action;
    event.threshold = watch.rule.setting.threshold;
    event.since = step;
    event.of = 0;
    std::size_t worst = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!watch.is_watched(i)) continue;
        ++event.of;
        if (raised && !watch.cells[i].active) continue;
        event.count += raised ? 1 : 0;
        // Of drifting values the one that has moved most; NaN is worst of all.
        const auto badness = [&](std::size_t at) {
            if (std::isnan(values[at])) return std::numeric_limits<double>::infinity();
            if (watch.rule.test == AlarmRule::Test::kDrift) {
                return std::abs(std::log(std::abs(values[at] / watch.first[at])));
            }
            return looks_down(watch.rule.test) ? -values[at] : values[at];
        };
        if (worst == values.size() || badness(i) > badness(worst)) worst = i;
    }
    if (worst == values.size()) worst = 0;
    event.value = values[worst];
    if (raised) event.since = watch.cells[worst].since;
    if (watch.rows * watch.columns > 1 || watch.rule.of_row_means) {
        event.row = static_cast<std::int64_t>(worst) / watch.columns;
        if (!watch.rule.of_row_means)
            event.column = static_cast<std::int64_t>(worst) % watch.columns;
    }
    event.text = to_text(event, watch.rule);
    return event;
}

std::vector<AlarmEvent> AlarmBoard::check(const MetricRecord& record) {
    std::vector<AlarmEvent> events;
    std::vector<double> values;
    for (Watch& watch : watches_) {
        if (!read(record, watch, values)) continue;
        const bool has_line =
            !fits_a_line(watch.rule.test) || watch.history.size() >= kAlarmLeastRecords;
        bool active = false;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!watch.is_watched(i)) continue;
            Cell& cell = watch.cells[i];
            // After restore an alarm waits for its line: it is not over for want of one.
            if (cell.active && !has_line && is_in_reach(watch.rule, values[i])) {
                active = true;
                continue;
            }
            if (is_broken(watch, i, values[i], record.step)) {
                if (cell.broken++ == 0 && !cell.active) cell.since = record.step;
                cell.kept = 0;
                if (cell.broken >= watch.rule.setting.records) cell.active = true;
            } else {
                cell.broken = 0;
                if (++cell.kept >= watch.rule.setting.records) cell.active = false;
            }
            active = active || cell.active;
        }
        if (active != watch.active) {
            watch.active = active;
            events.push_back(event_of(watch, values, active, record.step));
        }
    }
    return events;
}

std::int64_t AlarmBoard::active() const {
    return std::count_if(watches_.begin(), watches_.end(),
                         [](const Watch& watch) { return watch.active; });
}

std::string AlarmBoard::state() const {
    Json json = Json::object();
    for (const Watch& watch : watches_) {
        Json cells = Json::array();
        for (std::size_t i = 0; i < watch.cells.size(); ++i) {
            const Cell& cell = watch.cells[i];
            if (cell.is_idle()) continue;
            cells.push_back({i, cell.broken, cell.kept, cell.since, cell.active ? 1 : 0});
        }
        if (watch.first.empty() && cells.empty()) continue;
        json[key_of(watch.rule)] = {
            {"numbers", watch.cells.size()}, {"first", watch.first}, {"cells", cells}};
    }
    return json.dump();
}

void AlarmBoard::restore(const std::string& text) {
    try {
        check_json_depth("alarms", text, "state");
        const Json json = Json::parse(text);
        for (Watch& watch : watches_) {
            if (!json.contains(key_of(watch.rule))) continue;
            const Json& saved = json.at(key_of(watch.rule));
            const auto count = static_cast<std::size_t>(integer(saved.at("numbers"), kMostNumbers));
            watch.cells.assign(count, {});
            watch.first.clear();
            for (const Json& value : saved.at("first")) {
                watch.first.push_back(value.is_number() ? value.get<double>()
                                                        : std::numeric_limits<double>::quiet_NaN());
            }
            if (watch.first.size() != count) watch.first.clear();
            watch.active = false;
            for (const Json& cell : saved.at("cells")) {
                const auto at = static_cast<std::size_t>(integer(cell.at(0), kMostNumbers));
                const bool active = integer(cell.at(4), 1) != 0;
                watch.cells.at(at) = {integer(cell.at(1), kMostSteps),
                                      integer(cell.at(2), kMostSteps),
                                      integer(cell.at(3), kMostSteps), active};
                watch.active = watch.active || active;
            }
        }
    } catch (const std::exception& error) {
        throw_error(ErrorCode::kIo, "alarms", concat("got a damaged state (", error.what(), ")"));
    }
}

}  // namespace evenkeel
