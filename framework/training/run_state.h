// What a checkpoint says of the run that wrote it, beside weights and optimizer state. Nothing in it
// depends on time, so that equal runs write equal bytes.
#pragma once

#include <cstdint>
#include <string>

#include "framework/training/outliers.h"

namespace evenkeel {

struct RunState {
    std::int64_t step = 0;            // steps done
    std::int64_t updates = 0;         // optimizer updates made: steps less the skipped ones
    std::int64_t updates_before = 0;  // that the moments had seen when the run started from them
    std::int64_t sample = 0;          // global index of the next training sequence
    std::int64_t seed = 0;            // of the sampler
    std::int64_t seq_len = 0;         // numbering of the sequences depends on it
    std::uint64_t fingerprint = 0;    // of the data
    std::string data = "{}";          // JSON: Dataset::description; {} of an earlier version
    std::string model;                // JSON: TrainableModel::description
    std::string settings;             // JSON: what else decides the course of the run
    RecentSteps recent;               // what outliers are told from
    std::string alarms = "{}";        // JSON: AlarmBoard::state
};

std::string to_json(const RunState& state);
// Throws kIo, naming `origin`, for text that is not what to_json writes.
RunState parse_run_state(const std::string& json, const std::string& origin);

// Throws kConfig, naming what differs and both values, unless a run described by `now` may continue from
// `saved`: same model, seed, sequence length and data.
void check_resumable(const RunState& saved, const RunState& now, const std::string& origin);

// The sequences of a step in RunState::settings; 0 where they say nothing of it.
std::int64_t batch_size_of(const std::string& settings);

// Where two JSON objects differ: "num_layers: got 4, want 6; attention.head_dim: ..." ("" when equal).
std::string json_difference(const std::string& got, const std::string& want);
// The same in other words: "KEY: A before, B now; .."
std::string json_changes(const std::string& before, const std::string& now);

}  // namespace evenkeel
