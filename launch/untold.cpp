#include "launch/untold.h"

#include <algorithm>
#include <filesystem>

#include "framework/storage/checkpoint.h"
#include "framework/storage/state_shard.h"
#include "model/hugging_face/folder.h"

namespace evenkeel {

namespace fs = std::filesystem;

ScheduleConfig schedule_of_import() {
    ScheduleConfig schedule;
    schedule.peak_lr = 1e-5;
    return schedule;
}

bool is_trained_elsewhere(const std::string& path) {
    if (!fs::is_directory(path)) return false;
    if (hugging_face::is_folder(path)) return true;
    std::string checkpoint = path;
    if (!has_state(path, "model")) {
        const std::string checkpoints = path + "/checkpoints";
        if (!fs::is_directory(checkpoints)) return false;
        checkpoint = CheckpointStore(checkpoints, 0).latest();
    }
    return !checkpoint.empty() && !fs::exists(checkpoint + "/trainer.json");
}

std::string course_of(const RunConfig& config) {
    return concat(config.trainer.steps, " steps of ", config.trainer.batch_size, " sequences of ",
                  config.trainer.seq_len, " tokens, schedule.peak_lr ", config.schedule.peak_lr);
}

std::string untold_rate(const RunConfig& config) {
    const double got = config.schedule.peak_lr;
    if (got == schedule_of_import().peak_lr) {
        return concat("schedule.peak_lr ", got,
                      " is what an import gets, whose folder does not say what it was trained "
                      "with: choose one for the model");
    }
    if (got != ScheduleConfig().peak_lr) return "";
    return concat("schedule.peak_lr ", got,
                  " is the default, made for small models that begin anew; for weights that were "
                  "trained elsewhere it is far too much, above all for a large model: choose one, "
                  "such as 1e-5");
}

std::string undone_by_method(const std::string& path, const std::vector<std::string>& overrides) {
    const auto key_of = [](const std::string& override) {
        return override.substr(0, override.find('='));
    };
    const auto is_method = [&](const std::string& override) {
        return key_of(override) == "model.method";
    };
    const auto last = std::find_if(overrides.rbegin(), overrides.rend(), is_method);
    const auto before = static_cast<std::size_t>(overrides.rend() - last);
    if (before < 2) return "";
    RunConfig all = load_run_config(path, overrides);
    std::string undone;
    for (std::size_t i = 0; i + 1 < before; ++i) {
        const bool is_given_again =
            std::any_of(overrides.begin() + static_cast<std::ptrdiff_t>(i) + 1, overrides.end(),
                        [&](const std::string& o) { return key_of(o) == key_of(overrides[i]); });
        if (is_given_again) continue;
        std::vector<std::string> later = overrides;
        later.push_back(overrides[i]);
        RunConfig moved = load_run_config(path, later);
        if (to_json(moved) != to_json(all)) undone += (undone.empty() ? "" : ", ") + overrides[i];
    }
    return undone;
}

}  // namespace evenkeel
