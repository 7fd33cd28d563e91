// evenkeel doctor: facts that every rank gathers, and checks of the facts of all ranks. A check is a function of
// facts alone, so tests hand it made-up ones; the start of `train` asks the same functions for what is certainly an
// error (refuse_bad_start).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/run_config.h"
#include "parallel/gpu_assignment.h"

namespace evenkeel::doctor {

enum class Verdict { kOk, kWarning, kWrong };
const char* name_of(Verdict verdict);  // "ok", "warning", "wrong"

struct Check {
    std::string group, name;
    Verdict verdict = Verdict::kOk;
    std::string fact;    // what was measured
    std::string remedy;  // what to do about it; "" where nothing is to be done
};

struct Interface {
    std::string name;           // eth0
    std::uint32_t address = 0;  // IPv4, in the order of the host's bytes
    int prefix = 0;             // length of the network's part
};

// What a rank knows of itself and its host.
struct RankFacts {
    // Launch.
    std::string launcher;  // Launch::launcher
    int launched = 0;      // Launch::processes
    int slurm_tasks = 0;   // of the allocation, SLURM_NTASKS
    int mpi_size = 1;
    bool has_mpi = true;                    // this build
    std::string mpi_library;                // its version
    std::uint64_t program = 0, config = 0;  // hashes of the executable and of the resolved settings
    std::map<std::string, std::string> environment;  // what should be alike: OMP_*, NCCL_* ..
    std::map<std::string, std::string> mca;          // Open MPI's parameters, by their names
    // Host.
    std::string host;                   // its name
    std::string host_key;               // what tells hosts apart: name, boot and network namespace
    int ranks_on_node = 1;              // that MPI lets share memory
    double clock_ahead = 0.0;           // of rank 0's, in seconds
    double round_trip = 0.0;            // to rank 0 and back, in seconds; 0 on rank 0
    std::vector<Interface> interfaces;  // that are up, without the loop back
    std::vector<std::string> used;      // those that this process's connections to other hosts use
    // Processors and limits.
    std::vector<int> cores;  // that this process may use
    int cores_of_host = 1;
    double core_quota = 0.0;                 // of the control group; 0: none
    int threads = 1;                         // that OpenMP will start
    std::int64_t open_files = 0, stack = 0;  // soft limits; -1: unlimited
    std::uint64_t shm_free = 0, shm_total = 0;
    std::uint64_t memory_free = 0,
                  memory_total = 0;  // of the host, or of the control group where that has less
    std::string data_problem;  // why the data can't be read; "" where it can or none is configured
};

// One directory as all ranks see it.
struct DirectoryFacts {
    std::string path;
    std::string problem;           // why rank 0 can't write in it; else ""
    std::vector<int> unseen;       // ranks that do not find what rank 0 has written
    double sync_seconds = 0.0;     // that rank 0 took to write a block and have it on the disk
    double visible_seconds = 0.0;  // until the last rank saw it
    std::uint64_t free_bytes = 0;
};

struct Survey {
    std::vector<RankFacts> ranks;  // by rank
    std::optional<RunConfig> config;
    std::optional<DirectoryFacts> run_dir;
    std::vector<RankOnGpu> gpus;       // by rank; empty where none was looked for
    std::vector<std::string> drivers;  // theirs
    std::string no_gpu;                // why none was looked for
};

// Of this process; `config` may be null. Collective.
RankFacts look_around(Communicator& world, RunConfig* config);
// Why training could not open the data of that configuration, as it would say it; "" where it could, or none is named.
std::string problem_of_data(const RunConfig& config);
// clock_ahead and round_trip, then `used`, which there is only after a message. Collective.
void measure_network(Communicator& world, RankFacts& facts);
std::vector<Interface> interfaces_of_host();
std::vector<std::string> used_interfaces(const std::vector<Interface>& interfaces);
// Writes, reads and removes a file; makes the directory for that time if it isn't there. Collective.
DirectoryFacts look_at_directory(Communicator& world, const std::string& path);
// Every rank's text, by rank. Collective.
std::vector<std::string> gather_texts(Communicator& world, const std::string& text);
std::vector<RankFacts> gather_facts(Communicator& world, const RankFacts& facts);

std::vector<Check> check_launch(const Survey& survey);
std::vector<Check> check_processors(const Survey& survey);
std::vector<Check> check_hosts(const Survey& survey);
std::vector<Check> check_network(const Survey& survey);
std::vector<Check> check_gpus(const Survey& survey);
std::vector<Check> check_limits(const Survey& survey);
std::vector<Check> check_run(const Survey& survey);
std::vector<Check> all_checks(const Survey& survey);

// What of these ends a run before it begins: ranks with other programs or settings, and a run_dir that is not one
// directory. Throws kConfig with one sentence. Collective.
void refuse_bad_start(Communicator& world, RunConfig& config);

// "rank 3", "ranks 0-2, 5".
std::string rank_list(const std::vector<int>& ranks);
// Ranks with the same text, in the order of their first.
struct Group {
    std::string text;
    std::vector<int> ranks;
};
template <typename TextOf>
std::vector<Group> groups_of(const std::vector<RankFacts>& ranks, const TextOf& text_of) {
    std::vector<Group> groups;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
        const std::string text = text_of(ranks[static_cast<std::size_t>(r)]);
        auto at = groups.begin();
        while (at != groups.end() && at->text != text) ++at;
        if (at == groups.end()) at = groups.insert(at, {text, {}});
        at->ranks.push_back(r);
    }
    return groups;
}
// "ranks 0-1: TEXT; ranks 2-3: TEXT"; the text alone where all ranks have the same.
std::string text_of(const std::vector<Group>& groups);
std::vector<Group> hosts_of(const Survey& survey);  // by host_key

// The table for people, no wider than so many columns; the same as JSON.
std::string to_table(const Survey& survey,
                     const std::vector<Check>& checks,
                     int columns,
                     bool colour);
std::string to_json(const Survey& survey, const std::vector<Check>& checks);

}  // namespace evenkeel::doctor
