// evenkeel study: runs one, prints it, writes its files.
#include "launch/studies/study.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/replace_file.h"
#include "launch/report.h"
#include "launch/saved_run.h"
#include "launch/studies/registry.h"

namespace evenkeel {
namespace study {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

VisitFields fields_of(Study& study) {
    return [&study](ConfigVisitor& v) { study.visit_fields(v); };
}

std::unique_ptr<Study> make_study(const std::string& name) {
    std::string known;
    for (std::unique_ptr<Study>& study : make_studies()) {
        if (study->name() == name) return std::move(study);
        known += concat(known.empty() ? "" : ", ", study->name());
    }
    throw_error(ErrorCode::kConfig, "study",
                concat("name: got \"", name, "\", want one of ", known));
}

// One line for each setting.
class SettingsText final : public ConfigVisitor {
  public:
    void field(const char* name, bool& value, const char* doc) override {
        add(name, value ? "true" : "false", doc);
    }
    void field(const char* name, std::int64_t& value, const char* doc) override {
        add(name, std::to_string(value), doc);
    }
    void field(const char* name, double& value, const char* doc) override {
        add(name, format("%g", value), doc);
    }
    void field(const char* name, std::string& value, const char* doc) override {
        add(name, value, doc);
    }
    std::string text;

  protected:
    void choice_index(const char* name,
                      int& index,
                      std::span<const char* const> names,
                      const char* doc) override {
        add(name, names[static_cast<std::size_t>(index)], doc);
    }
    bool begin_section(const char*, const char*) override { return true; }
    void end_section() override {}

  private:
    void add(const std::string& name, const std::string& value, const char* doc) {
        text += concat("  ", name, "=", value, "\n      ", doc, "\n");
    }
};

// JSON has neither NaN nor infinity.
Json to_json(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    const auto* number = std::get_if<double>(&cell);
    if (number == nullptr) return nullptr;
    if (std::isnan(*number)) return "nan";
    if (std::isinf(*number)) return *number > 0.0 ? "inf" : "-inf";
    return *number;
}

Json to_json(const Table& table) {
    Json rows = Json::array();
    for (const std::vector<Cell>& row : table.rows) {
        Json item = Json::object();
        for (std::size_t i = 0; i < table.columns.size(); ++i) {
            item[table.columns[i].key] = to_json(row[i]);
        }
        rows.push_back(item);
    }
    return rows;
}

Json settings_json(Study& study) { return Json::parse(evenkeel::to_json(fields_of(study))); }

Json to_json(Study& study, const Outcome& outcome) {
    Json tables = Json::object();
    for (const Table& table : outcome.tables) tables[table.key] = to_json(table);
    return {{"study", study.name()},
            {"summary", study.summary()},
            {"settings", settings_json(study)},
            {"findings", outcome.findings},
            {"tables", tables}};
}

std::vector<Setting> settings_of(Study& study) {
    const std::unique_ptr<Study> standard = make_study(study.name());
    const Json defaults = settings_json(*standard);
    const auto text = [](const Json& value) {
        return value.is_string() ? value.get<std::string>() : value.dump();
    };
    std::vector<Setting> settings;
    const Json values = settings_json(study);
    for (const auto& [key, value] : values.items()) {
        settings.push_back({key, text(value), text(defaults.at(key))});
    }
    return settings;
}

PageTable page_table(const Table& table) {
    PageTable page{table.title, table.note, {}, {}};
    for (const Column& column : table.columns) page.header.push_back(column.title);
    for (const std::vector<Cell>& row : table.rows) {
        std::vector<std::string> cells;
        for (std::size_t i = 0; i < row.size(); ++i) {
            cells.push_back(text_of(row[i], table.columns[i]));
        }
        page.rows.push_back(std::move(cells));
    }
    return page;
}

void write_page(Study& study, const Outcome& outcome, const std::string& directory) {
    const std::string vega = find_vega();
    if (vega.empty()) return log_warning(concat("no report: ", kVegaMissing));
    ReportPage page;
    page.title = concat("Evenkeel study: ", study.name());
    page.subtitle = study.summary();
    page.findings = outcome.findings;
    page.figures = outcome.figures;
    for (const Table& table : outcome.tables) page.tables.push_back(page_table(table));
    page.settings = settings_of(study);
    const std::string path = directory + "/report.html";
    write_file_atomically(path, to_html(page, vega));
    log_info("report   " + fs::absolute(path).lexically_normal().string());
}

// Results of another study are not replaced.
void check_owner(const std::string& path, const std::string& name) {
    check_replaceable(path);
    if (!fs::exists(path)) return;
    const Json results = Json::parse(read_file(path), nullptr, false);
    const std::string owner =
        results.is_object() && results.contains("study") && results["study"].is_string()
            ? results["study"].get<std::string>()
            : "";
    EVENKEEL_CHECK_CODE(owner == name, ErrorCode::kConfig, "study", "--out: ", path, " is ",
                        owner.empty() ? "no study's results" : "of the study " + owner,
                        "; want another directory");
}

// The number of columns that UTF-8 text takes on a terminal, near enough.
std::size_t columns_of(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
}

}  // namespace

std::string text_of(const Cell& cell, const Column& column) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    if (const auto* number = std::get_if<double>(&cell)) return format(column.pattern, *number);
    return "-";
}

std::string to_text(const Table& table) {
    std::vector<std::vector<std::string>> lines(table.rows.size() + 1);
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        lines[0].push_back(table.columns[i].title);
        for (std::size_t row = 0; row < table.rows.size(); ++row) {
            lines[row + 1].push_back(text_of(table.rows[row][i], table.columns[i]));
        }
        std::size_t width = 0;
        for (const auto& line : lines) width = std::max(width, columns_of(line[i]));
        widths.push_back(width);
    }
    std::string text = table.title + "\n";
    for (const auto& line : lines) {
        for (std::size_t i = 0; i < line.size(); ++i) {
            text += std::string(2 + widths[i] - columns_of(line[i]), ' ') + line[i];
        }
        text += "\n";
    }
    return text;
}

std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        if (end > begin) words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

std::vector<double> numbers_of(const char* setting, const std::string& text) {
    std::vector<double> numbers;
    for (const std::string& word : words_of(text)) {
        char* end = nullptr;
        numbers.push_back(std::strtod(word.c_str(), &end));
        EVENKEEL_CHECK_CODE(*end == '\0' && std::isfinite(numbers.back()), ErrorCode::kConfig,
                            "study", setting, ": got \"", word,
                            "\", want numbers with commas between them");
    }
    EVENKEEL_CHECK_CODE(!numbers.empty(), ErrorCode::kConfig, "study", setting, ": got \"", text,
                        "\", want at least one number");
    return numbers;
}

void check_range(const char* setting, double value, double least, double most) {
    EVENKEEL_CHECK_CODE(value >= least && value <= most, ErrorCode::kConfig, "study", setting,
                        ": got ", value, ", want from ", least, " to ", most);
}

std::string number_text(const char* pattern, double value) {
    return std::isfinite(value) ? format(pattern, value) : "not finite";
}

void check_head_dim(std::int64_t head_dim) {
    constexpr std::int64_t kWidths[] = {32, 64, 80, 96, 128, 192, 256};
    EVENKEEL_CHECK_CODE(
        std::find(std::begin(kWidths), std::end(kWidths), head_dim) != std::end(kWidths),
        ErrorCode::kConfig, "study", "head_dim: got ", head_dim,
        ", want 32, 64, 80, 96, 128, 192 or 256");
}

void check_finite(const Outcome& outcome) {
    for (const Table& table : outcome.tables) {
        for (std::size_t row = 0; row < table.rows.size(); ++row) {
            for (std::size_t i = 0; i < table.columns.size(); ++i) {
                const auto* number = std::get_if<double>(&table.rows[row][i]);
                EVENKEEL_CHECK_CODE(number == nullptr || std::isfinite(*number),
                                    ErrorCode::kNonFinite, "study", table.key, ", row ", row + 1,
                                    ", ", table.columns[i].title, ": got ", *number,
                                    ": these settings lead beyond what numbers here can hold");
            }
        }
    }
}

const char* series_color(std::size_t i) {
    static constexpr const char* kColors[] = {"#2864b0", "#d9730d", "#2d8659", "#b3257a",
                                              "#7a8591", "#7a4fc0", "#a38a00", "#c0392b",
                                              "#1d2530", "#17a2b8"};
    return kColors[i % std::size(kColors)];
}

std::vector<std::unique_ptr<Study>> make_studies() {
    std::vector<std::unique_ptr<Study>> studies;
#define EVENKEEL_MAKE_STUDY(name) studies.push_back(make_##name());
    EVENKEEL_STUDIES(EVENKEEL_MAKE_STUDY)
#undef EVENKEEL_MAKE_STUDY
    return studies;
}

}  // namespace study

std::vector<StudyHelp> study_helps() {
    std::vector<StudyHelp> helps;
    for (const std::unique_ptr<study::Study>& study : study::make_studies()) {
        study::SettingsText settings;
        study->visit_fields(settings);
        const std::string heading = settings.text.empty() ? "" : "Settings (--set):\n";
        helps.push_back(
            {study->name(), study->summary(), heading + settings.text, study->has_points()});
    }
    return helps;
}

void run_study(StudyCommand command) {
    const std::unique_ptr<study::Study> study = study::make_study(command.name);
    const VisitFields fields = study::fields_of(*study);
    for (const std::string& assignment : command.overrides) apply_override(fields, assignment);
    study->validate();
    if (command.out.empty()) command.out = "runs/studies/" + command.name;
    std::error_code error;
    std::filesystem::create_directories(command.out, error);
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "study", "--out: cannot create ", command.out, ": ",
                        error.message());
    if (!command.point.empty()) return study->compute_point(command);
    study::check_owner(command.out + "/results.json", command.name);

    const study::Outcome outcome = study->run(command);
    // A run that is trained may end in one, which is what its study shows.
    if (!study->has_points()) study::check_finite(outcome);
    const std::string json = study::to_json(*study, outcome).dump(2) + "\n";
    write_file_atomically(command.out + "/results.json", json);
    if (command.json) {
        std::cout << json;
    } else {
        for (const study::Table& table : outcome.tables) std::cout << to_text(table) << "\n";
        for (const std::string& finding : outcome.findings) std::cout << finding << "\n";
        std::cout << "\n";
    }
    log_info("results  " +
             std::filesystem::absolute(command.out + "/results.json").lexically_normal().string());
    study::write_page(*study, outcome, command.out);
    EVENKEEL_CHECK_CODE(outcome.failed == 0, ErrorCode::kIo, "study", outcome.failed, " of ",
                        outcome.points, " points failed, why is in ", command.out,
                        "/points; the same command tries them again");
}

}  // namespace evenkeel
