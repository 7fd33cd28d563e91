// The points of a study that trains: each computed by a process of its own on one thread, as many at a time as there
// are cores, and kept in DIR/points/KEY.json. What is there is not computed again, so that a study that was interrupted
// goes on where it was.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/commands.h"
#include "launch/report_plots.h"
#include "launch/studies/study.h"

namespace evenkeel::study {

// The setting that says what text a point was made of, not only where it lay. Points kept without it are taken
// as they are.
inline constexpr const char* kTextFingerprint = "text_fingerprint";

struct PointResult {
    std::map<std::string, double> numbers;
    std::map<std::string, std::vector<Point>> curves;
    std::string failure;  // not "": there is nothing else, and this is what its process said last

    // NaN where there is none.
    double number(const std::string& name) const;
};

struct PointPlan {
    std::vector<std::string> keys;
    // JSON of the settings that decide what a point gives. Points kept with others are refused.
    std::string settings;
    std::int64_t jobs = 0;  // processes at a time; 0: one a core
    std::string program = "/proc/self/exe";
};

// All points, in processes "PROGRAM study NAME --out DIR --set ... --point KEY" where they are not there yet; those that
// failed before are tried again. A point whose process fails does not end the others. Throws kConfig when a kept point
// has other settings.
std::map<std::string, PointResult> run_points(const StudyCommand& command, const PointPlan& plan);

// Sets the outcome's counts of points and of those that failed.
void count_points(const std::map<std::string, PointResult>& results, Outcome& outcome);

// In the process of a point. It ends when the one that started it does.
void begin_point();
void keep_point(const StudyCommand& command,
                const std::string& settings,
                const PointResult& result);

}  // namespace evenkeel::study
