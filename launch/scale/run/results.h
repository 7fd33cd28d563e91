// What has been measured: one file for each point, DIR/points/KEY.json.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/scale/run/rates.h"
#include "launch/scale/run/run_plan.h"
#include "scaling/step_model.h"

namespace evenkeel::scale {

struct CommunicationTime {
    std::string group, operation;
    double exposed = 0.0, hidden = 0.0;  // seconds
};

struct Measured {
    std::string device;  // "cpu", or a GPU's name
    std::int64_t nodes = 1, threads = 1;
    bool oversubscribed = false;
    std::vector<double> losses;
    double tokens = 0.0;                                               // of a step
    double seconds = 0.0, first_quartile = 0.0, third_quartile = 0.0;  // of a step
    // Nothing where passes were replayed as graphs.
    std::optional<std::vector<CommunicationTime>> communication;
    double computing = 0.0;  // seconds without exposed communication
    double peak_memory = 0.0;
    std::optional<double> joules_per_token;
    std::string energy_of;
    std::optional<Rates> rates;

    double tokens_per_second() const { return tokens / seconds; }
    double exposed() const;
    double hidden() const;
};

struct Result {
    std::string key, settings;  // JSON
    RunConfig config;
    std::int64_t ranks = 1, attempts = 0;
    std::string failure;  // not "": there is nothing else
    std::optional<Measured> measured;

    // What compare() finds.
    std::string loss_reference;  // key of the point its losses are held against; "": there is none
    double loss_difference = 0.0, loss_tolerance = 0.0;
    bool is_wrong() const {
        return !loss_reference.empty() && !(loss_difference <= loss_tolerance);
    }
    double speed_up = 0.0,
           efficiency = 0.0;  // over the point of the same model and length with fewest ranks
    double peak_flops = 0.0;  // of a rank; 0: not known
    std::string peak_source;
    double utilisation = 0.0;
    std::optional<scaling::StepTime> modelled;
};

std::string point_file(const std::string& directory, const std::string& key);
// From the file that run_scale_point wrote.
Measured read_measured(const std::string& file);
// Keeps a result. `measured_file`: what the point wrote, "" where it failed.
void write_result(const std::string& directory,
                  const Result& result,
                  const std::string& measured_file);
// Throws kIo for what is no such file.
Result read_result(const std::string& file);

// Fills in what follows from all of them together. network: DIR/network.json, where there is one.
void compare(const RunPlan& plan, const std::string& network, std::vector<Result>& results);

}  // namespace evenkeel::scale
