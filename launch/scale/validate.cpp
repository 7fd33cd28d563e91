// evenkeel scale validate: the model of a step against published results. evenkeel scale hardware: its clusters.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>

#include "framework/json.h"
#include "launch/scale/text.h"
#include "scaling/published.h"

namespace evenkeel {
namespace {

using namespace scale;
using Json = nlohmann::ordered_json;
using scaling::Comparison;

// Rows of one source, which follow each other.
std::string source_of(const Comparison& comparison) {
    const std::string& source = comparison.row.source;
    return source.substr(0, source.find(','));
}

double utilisation_of(const Comparison& comparison, double seconds) {
    return scaling::utilisation(scaling::load_hardware(comparison.row.hardware),
                                comparison.row.plan, seconds);
}

void print_json(const std::vector<Comparison>& comparisons) {
    Json rows = Json::array();
    for (const Comparison& c : comparisons) {
        rows.push_back({{"name", c.row.name},
                        {"source", c.row.source},
                        {"note", c.row.note},
                        {"hardware", c.row.hardware},
                        {"layout", scale::to_json(c.row.plan.layout)},
                        {"predicted", scale::to_json(c.predicted)},
                        {"published_seconds", c.published},
                        {"error", c.error()}});
    }
    std::cout << Json{{"median_error", scaling::median_error(comparisons)},
                      {"largest_error", scaling::largest_error(comparisons)},
                      {"rows", rows}}
                     .dump(2)
              << "\n";
}

void print_text(const std::vector<Comparison>& comparisons) {
    std::size_t width = 0;
    for (const Comparison& c : comparisons) width = std::max(width, c.row.name.size());
    std::cout << std::left << std::setw(static_cast<int>(width)) << "seconds a step" << std::right
              << "  predicted  published    error   MFU predicted  published\n";
    for (std::size_t first = 0; first < comparisons.size();) {
        std::vector<Comparison> group;
        const std::string source = source_of(comparisons[first]);
        for (; first < comparisons.size() && source_of(comparisons[first]) == source; ++first) {
            group.push_back(comparisons[first]);
        }
        std::cout << source << ": median error " << percent_text(scaling::median_error(group))
                  << "\n";
        for (const Comparison& c : group) {
            char numbers[96];
            std::snprintf(numbers, sizeof numbers,
                          "  %9.3f  %9.3f  %+5.1f %%        %5.1f %%    %5.1f %%",
                          c.predicted.total(), c.published, 100.0 * c.error(),
                          100.0 * utilisation_of(c, c.predicted.total()),
                          100.0 * utilisation_of(c, c.published));
            std::cout << std::left << std::setw(static_cast<int>(width)) << c.row.name << numbers
                      << "\n";
        }
    }
    const auto below = static_cast<std::size_t>(
        std::count_if(comparisons.begin(), comparisons.end(),
                      [](const Comparison& c) { return std::abs(c.error()) <= 0.15; }));
    std::cout
        << comparisons.size() << " rows: median error "
        << percent_text(scaling::median_error(comparisons)) << " (goal: 15 %), largest "
        << percent_text(scaling::largest_error(comparisons)) << " (goal: 35 %), " << below
        << " within 15 %\n"
        << to_text(published_gap()) << "\n"
        << "One set of rates for all rows, chosen before the first comparison: docs/scaling.md. "
           "Sources: --json.\n";
}

}  // namespace

void run_scale_validate(const ScaleValidateCommand& command) {
    const std::vector<Comparison> comparisons = scaling::compare_published({});
    if (command.json) {
        print_json(comparisons);
    } else {
        print_text(comparisons);
    }
}

void run_scale_hardware(const ScaleHardwareCommand& command) {
    std::vector<std::string> names = scaling::hardware_names();
    if (!command.name.empty()) names = {command.name};
    Json list = Json::array();
    for (const std::string& name : names) {
        scaling::Hardware hardware = scaling::load_hardware(name);
        const std::string text =
            evenkeel::to_json([&](ConfigVisitor& v) { hardware.visit_fields(v); });
        if (command.json) {
            Json json = {{"name", hardware.name}};
            json.update(Json::parse(text));
            list.push_back(json);
        } else if (!command.name.empty()) {
            std::cout << text << "\n";
        } else {
            std::cout << std::left << std::setw(12) << hardware.name << hardware.title << "\n";
        }
    }
    if (command.json) std::cout << list.dump(2) << "\n";
}

}  // namespace evenkeel
