// What two runs, whose losses are held against one another, do not have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launch/report_page.h"
#include "launch/run_config.h"

namespace evenkeel {

// Leaves of a configuration with their defaults, in its order.
std::vector<Setting> settings_of(RunConfig config);

// "nats per byte" of a text, "nats per token" of files of tokens.
std::string loss_unit(const RunConfig& config);

struct RunDifferences {
    struct One {
        std::string path, run, other;  // a setting's values
    };
    std::vector<One> settings;  // but for the run's directory and whether it was resumed
    std::string data;           // a sentence where the runs did not have the same data, else ""
};

// summary: a run's summary.json, null where it has not ended; tells texts of one name apart. Throws kConfig, naming the
// runs, where their losses are in other units.
RunDifferences differences(const std::string& run,
                           const RunConfig& run_config,
                           const nlohmann::ordered_json& run_summary,
                           const std::string& other,
                           const RunConfig& other_config,
                           const nlohmann::ordered_json& other_summary);

std::string text_of(const RunDifferences& found, const std::string& run, const std::string& other);
nlohmann::ordered_json to_json(const RunDifferences& found);
PageTable table_of(const RunDifferences& found, const std::string& run, const std::string& other);

}  // namespace evenkeel
