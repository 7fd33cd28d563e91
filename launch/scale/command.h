// evenkeel scale: what a cluster would make of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scaling/measure_collectives.h"

namespace evenkeel {

struct ScaleCommand {
    std::string config;                  // --config FILE
    std::vector<std::string> overrides;  // --set path=value
    std::string hardware = "h100";       // --hardware: a name or a file
    std::optional<std::int64_t> gpus;    // --gpus; as many as the configuration asks for
    std::optional<double> tokens;        // --tokens: of the whole run; trainer.steps of them
    std::optional<std::int64_t> batch;   // --batch, sequences a step; trainer.batch_size
    bool pipeline = false;               // --pipeline
    bool across_nodes = false;           // --across-nodes
    std::int64_t top = 6;                // --top: layouts shown
    std::string network;                 // --network FILE: measured; "": the description's
    bool json = false;
};
// The configuration as it stands: step, memory, days. Returns the program's status, 1 where it does not fit.
int run_scale_plan(const ScaleCommand& command);
// The layout that trains the configuration's model fastest. Returns the program's status, 1 where none fits.
int run_scale_search(const ScaleCommand& command);

struct ScaleValidateCommand {
    bool json = false;
};
// The model against published results.
void run_scale_validate(const ScaleValidateCommand& command);

struct ScaleHardwareCommand {
    std::string name;  // "": a line for each
    bool json = false;
};
// Descriptions of clusters.
void run_scale_hardware(const ScaleHardwareCommand& command);

struct ScaleMeasureCommand {
    std::string device = "cpu", communication = "nccl";
    std::int64_t tensor_parallel = 1;
    scaling::MeasureSettings settings;
    std::string output;  // --output FILE: the network; "": none
    bool json = false;
};
// Collectives over the groups of a process grid. Collective over the world; throws on all ranks after the table if a result
// was wrong.
void run_scale_measure(const ScaleMeasureCommand& command, Communicator& world);

struct ScaleRunCommand {
    std::string plan;                    // configs/scaling_*.json
    std::vector<std::string> overrides;  // --set path=value, of the plan
    std::string out;                     // --out DIR; "": runs/PLAN
    bool list = false;                   // --list: print the points and end
};
// Measures the points of a plan, each by ranks of its own, and writes a report. Returns the program's status: 1 where a
// point has failed or its losses are wrong.
int run_scale_run(const ScaleRunCommand& command);

struct ScalePointCommand {
    std::string config;
    std::vector<std::string> overrides;
    std::int64_t warmup_steps = 2;
    std::string output;  // --output FILE
};
// trainer.steps steps of training, timed; no checkpoint, no run directory. Collective over the world.
void run_scale_point(const ScalePointCommand& command, Communicator& world);

struct ScaleReportCommand {
    std::string directory;
};
// report.html and results.csv of what has been measured so far.
int run_scale_report(const ScaleReportCommand& command);

}  // namespace evenkeel
