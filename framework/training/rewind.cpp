#include "framework/training/rewind.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "framework/error.h"
#include "framework/log.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

// PATH + "metrics" + ".rewound" + ".jsonl", numbered from the second on.
std::string unused(const std::string& stem, const std::string& extension) {
    std::string path = stem + ".rewound" + extension;
    for (int i = 2; fs::exists(path); ++i) path = concat(stem, ".rewound.", i, extension);
    return path;
}

}  // namespace

void check_can_rewind(const CheckpointStore& store, const std::string& run_dir, std::int64_t step) {
    const std::vector<std::int64_t> steps = store.steps();
    EVENKEEL_CHECK_CODE(!steps.empty() && steps.front() <= step, ErrorCode::kConfig, "train",
                        "--rewind: got ", step, ", want a step with a checkpoint at or before it; ",
                        run_dir, steps.empty() ? " has none" : " begins with that of step ",
                        steps.empty() ? "" : std::to_string(steps.front()));
}

void rewind_run(const CheckpointStore& store, const std::string& run_dir, std::int64_t step) {
    const std::vector<std::int64_t> steps = store.steps();  // ascending
    const auto later = std::upper_bound(steps.begin(), steps.end(), step);
    std::error_code ignored;  // without the pointer the newest by name is next
    fs::remove(fs::path(store.directory()) / "latest", ignored);
    if (later == steps.end()) return;
    try {
        const std::string metrics = run_dir + "/metrics";
        if (fs::exists(metrics + ".jsonl")) {
            fs::copy_file(metrics + ".jsonl", unused(metrics, ".jsonl"));
        }
        // The newest first: what an interruption leaves is a run that goes back less far.
        for (auto s = steps.end(); s != later;) {
            --s;
            const std::string path = store.path(*s);
            const std::string aside = unused(path, "");
            fs::rename(path, aside);
            log_info(concat("rewind      ", path, " is kept as ", aside));
        }
    } catch (const fs::filesystem_error& error) {
        throw_error(ErrorCode::kIo, "train", concat("--rewind: ", error.what()));
    }
}

}  // namespace evenkeel
