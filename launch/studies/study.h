// What every study of `evenkeel study NAME` is made of: settings, and tables, plots and sentences made from what it
// measured. study.cpp prints them, and writes results.json and report.html.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "framework/config.h"
#include "launch/commands.h"
#include "launch/report_plots.h"

namespace evenkeel::study {

// A number, a text, or nothing.
using Cell = std::variant<std::monostate, double, std::string>;

struct Column {
    std::string key;    // in JSON
    std::string title;  // in print
    const char* pattern = "%.3g";
};

struct Table {
    std::string key;    // in JSON
    std::string title;  // in print
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;
    std::string note = {};  // a sentence for the page
};

struct Outcome {
    std::vector<Table> tables;
    std::vector<Figure> figures;
    std::vector<std::string> findings;   // sentences made of the numbers measured
    std::size_t points = 0, failed = 0;  // of the points that were to be there
};

class Study {
  public:
    virtual ~Study() = default;
    virtual const char* name() const = 0;
    virtual const char* summary() const = 0;  // one sentence
    virtual void visit_fields(ConfigVisitor&) {}
    // Throws kConfig for settings that have no meaning.
    virtual void validate() const {}
    // With the settings read.
    virtual Outcome run(const StudyCommand& command) = 0;
    // Whether there are points, computed each in a process of its own (points.h), and that process's work.
    virtual bool has_points() const { return false; }
    virtual void compute_point(const StudyCommand&) {}
};

// One for each study, with default settings, in the order of help texts.
std::vector<std::unique_ptr<Study>> make_studies();

// A cell as it is printed.
std::string text_of(const Cell& cell, const Column& column);
// Columns aligned, as on a terminal.
std::string to_text(const Table& table);

// Settings that hold several values: "3e-4,1e-3". Throws kConfig naming the setting.
std::vector<double> numbers_of(const char* setting, const std::string& text);
std::vector<std::string> words_of(const std::string& text);
// Throws kConfig naming the setting where it is not from `least` to `most`.
void check_range(const char* setting, double value, double least, double most);
// The number, or that it is none: a run's loss may be lost.
std::string number_text(const char* pattern, double value);
// The widths of a head that attention has.
void check_head_dim(std::int64_t head_dim);
// Throws kNonFinite naming the first number of the tables that is none.
void check_finite(const Outcome& outcome);

// Colours that stay apart, for the i-th of several series.
const char* series_color(std::size_t i);

}  // namespace evenkeel::study
