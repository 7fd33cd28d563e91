// A plan of measurements, as in configs/scaling_*.json, and the points that it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/run_config.h"

namespace evenkeel::scale {

enum class Scaling { kStrong, kWeak };
enum class Launcher { kMpirun, kSlurm };

// Lists are text with commas between: "1,2,4".
struct RunPlan {
    std::string title;
    std::string config;    // list of files
    std::string settings;  // of all of them, as --set takes them, with blanks between
    Scaling scaling = Scaling::kStrong;
    std::string ranks = "1";            // list
    std::string tensor_parallel = "1";  // list
    std::string seq_len;                // list; "": the configuration's
    std::int64_t batch = 0;             // sequences: strong, of a step; weak, of each rank
    std::int64_t steps = 12;            // of a point, in all
    std::int64_t warmup_steps = 2;      // of these, not timed
    std::int64_t threads = 1;           // of a rank
    double loss_tolerance = 0.0;        // relative; 0: by the type of activations

    std::string hardware;  // whose peak utilisation is a share of; "": on CPUs the measured product
    bool measure_network = true;

    Launcher launcher = Launcher::kMpirun;
    std::string mpirun = "mpirun --oversubscribe --bind-to none";  // the command, with its options
    std::string sbatch;                                            // options, with blanks between
    std::string script = "launch/slurm.sbatch";
    std::int64_t ranks_per_node = 8;  // Slurm, and the groups that the network is measured on
    double timeout_minutes = 30.0;    // of a point
    std::int64_t attempts = 2;        // for each point
    std::int64_t jobs = 1;            // points at a time; they slow each other down on one machine

    void visit_fields(ConfigVisitor& v);
    // Throws kConfig, one sentence, naming the key.
    void validate() const;
};

struct RunPoint {
    std::string key;  // a name for files: "8b_s8192_tp4_r32"
    RunConfig config;
    std::int64_t ranks = 1;
    std::string refused;  // not "": why it cannot be run

    std::int64_t tensor_parallel() const { return config.parallel.tensor_parallel; }
    std::int64_t data_parallel() const { return ranks / tensor_parallel(); }
};

// What blanks divide.
std::vector<std::string> words_of(const std::string& text);

RunPlan load_run_plan(const std::string& file, const std::vector<std::string>& overrides);
// All combinations in which tensor_parallel divides ranks, in the order of configurations, lengths, groups and ranks; the
// micro-batch is the largest divisor of a copy's part of the batch that is not above the configuration's. Throws kConfig for
// a file that can't be read, and where there is no point that could be run.
std::vector<RunPoint> points_of(const RunPlan& plan);
// JSON of all that decides what a point gives.
std::string settings_of(const RunPlan& plan, const RunPoint& point);

}  // namespace evenkeel::scale
