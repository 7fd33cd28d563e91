#include "launch/saved_run.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "framework/checkpoint.h"

namespace evenkeel {

namespace fs = std::filesystem;

namespace {

// A checkpoint loads at any number of ranks: unless the command line says how to use those there are, they
// share the layers as in training where that divides them, or else all together.
void fit_to_ranks(ParallelConfig& parallel,
                  const std::vector<std::string>& overrides,
                  int world_size) {
    for (const std::string& assignment : overrides) {
        if (assignment.starts_with("parallel.")) return;
    }
    if (world_size % parallel.tensor_parallel != 0) parallel.tensor_parallel = world_size;
    parallel.data_parallel = 0;
}

}  // namespace

SavedRun open_saved_run(const std::string& path,
                        const std::vector<std::string>& overrides,
                        int world_size) {
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "open_run", path,
                        ": no such directory, want a run or a checkpoint in one");
    SavedRun run;
    fs::path directory = fs::path(path).lexically_normal();
    if (directory.filename().empty()) directory = directory.parent_path();  // "runs/a/"
    const bool is_checkpoint = fs::exists(directory / "model.safetensors");
    // RUN/checkpoints/step_00000020
    const fs::path run_directory =
        is_checkpoint ? fs::absolute(directory).parent_path().parent_path() : directory;
    run.directory = run_directory.string();
    const fs::path config = run_directory / "config.json";
    EVENKEEL_CHECK_CODE(fs::exists(config), ErrorCode::kIo, "open_run", path, ": not a run, ",
                        config.string(), " is missing");
    run.config = load_run_config(config.string(), overrides);
    fit_to_ranks(run.config.parallel, overrides, world_size);
    // Nothing is trained, so the batch of a step need not be divisible among these ranks.
    run.config.trainer.batch_size =
        run.config.trainer.micro_batch_size *
        std::max<std::int64_t>(world_size / run.config.parallel.tensor_parallel, 1);
    run.checkpoint = is_checkpoint
                         ? directory.string()
                         : CheckpointStore((run_directory / "checkpoints").string(), 0).latest();
    EVENKEEL_CHECK_CODE(!run.checkpoint.empty(), ErrorCode::kIo, "open_run", path,
                        ": holds no complete checkpoint; train it first");
    const std::string name = fs::path(run.checkpoint).filename().string();  // step_00000020
    if (name.starts_with("step_")) run.step = std::atoll(name.c_str() + 5);
    return run;
}

std::string printable(const std::string& text) {
    using Json = nlohmann::json;
    const std::string valid =
        Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
    std::string out;
    for (const char c : valid) {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        out += control ? std::string("\xEF\xBF\xBD") : std::string(1, c);
    }
    return out;
}

std::string grouped(std::int64_t value) {
    const std::string digits = std::to_string(value);
    const std::size_t sign = value < 0 ? 1 : 0;
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        const std::size_t left = digits.size() - i;
        if (i > sign && left % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

}  // namespace evenkeel
