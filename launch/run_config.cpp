#include "launch/run_config.h"

#include <algorithm>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/commands.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kLogColumns = 100;

// Names and paths that are not set are left out.
void append_section(const std::string& path, const Json& section, std::string& text) {
    std::string line = path.empty() ? "run" : path;
    line.resize(std::max<std::size_t>(line.size() + 1, 26), ' ');
    const std::size_t indent = line.size();
    bool has_values = false;
    for (const auto& [key, value] : section.items()) {
        if (value.is_object() || value == "") continue;
        const std::string item =
            key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
        if (has_values && line.size() + 1 + item.size() > kLogColumns) {
            text += line + "\n";
            line = std::string(indent, ' ');
            has_values = false;
        }
        line += (has_values ? " " : "") + item;
        has_values = true;
    }
    if (has_values) text += line + "\n";
    for (const auto& [key, value] : section.items()) {
        if (value.is_object()) append_section(path.empty() ? key : path + "." + key, value, text);
    }
}

void check_ranks(const ParallelConfig& parallel, int world_size) {
    const auto code = ErrorCode::kConfig;
    EVENKEEL_CHECK_CODE(parallel.tensor_parallel >= 1, code, "config",
                        "parallel.tensor_parallel: got ", parallel.tensor_parallel,
                        ", want 1 or more");
    EVENKEEL_CHECK_CODE(parallel.data_parallel >= 0, code, "config", "parallel.data_parallel: got ",
                        parallel.data_parallel, ", want 0 or more");
    for (const auto& [name, size] : {std::pair{"tensor_parallel", parallel.tensor_parallel},
                                     {"data_parallel", parallel.data_parallel}}) {
        // So that their product fits.
        EVENKEEL_CHECK_CODE(size <= std::int64_t{1} << 30, code, "config", "parallel.", name,
                            ": got ", size, ", want at most 2^30");
    }
    EVENKEEL_CHECK_CODE(parallel.zero_stage == 0 || parallel.zero_stage == 1, code, "config",
                        "parallel.zero_stage: got ", parallel.zero_stage, ", want 0 or 1");
    EVENKEEL_CHECK_CODE(parallel.timeout_seconds > 0.0, code, "config",
                        "parallel.timeout_seconds: got ", parallel.timeout_seconds,
                        ", want more than 0");
    const std::int64_t want =
        parallel.tensor_parallel * std::max<std::int64_t>(parallel.data_parallel, 1);
    const bool fits = parallel.data_parallel > 0 ? want == world_size : world_size % want == 0;
    EVENKEEL_CHECK_CODE(fits, code, "config", "number of ranks: got ", world_size, ", want ",
                        parallel.data_parallel > 0 ? "" : "a multiple of ", want,
                        " (parallel.tensor_parallel=", parallel.tensor_parallel,
                        " parallel.data_parallel=", parallel.data_parallel, "); start ", want,
                        " ranks: mpirun -np ", want, " evenkeel ...");
}

}  // namespace

void RunConfig::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kDevices[] = {"cpu", "cuda"};
    v.choice("device", device, kDevices, "where the model lives: cpu, or one GPU a rank");
    v.field("cuda_graphs", cuda_graphs,
            "on GPUs, record the passes of a step and replay them, untimed within");
    v.section("model", model, "the decoder");
    v.section("data", data, "the text, or tokens");
    v.section("trainer", trainer, "the training loop");
    v.section("schedule", schedule, "the learning rate");
    v.section("optimizer", optimizer, "AdamW");
    v.section("parallel", parallel, "how ranks share the work");
    v.section("alarms", alarms, "what to do about numbers of a run that are out of bounds");
}

void RunConfig::validate(int world_size) const {
    const auto code = ErrorCode::kConfig;
    check_ranks(parallel, world_size);
    model.validate(parallel.tensor_parallel, device);
    trainer.validate(static_cast<int>(world_size / parallel.tensor_parallel));
    schedule.validate();
    optimizer.validate();
    alarms.validate();
    EVENKEEL_CHECK_CODE(trainer.seq_len <= model.max_seq_len, code, "config",
                        "trainer.seq_len: got ", trainer.seq_len,
                        ", want at most model.max_seq_len=", model.max_seq_len);
    const std::int64_t rows = trainer.micro_batch_size * trainer.seq_len;
    EVENKEEL_CHECK_CODE(
        !parallel.sequence_parallel || rows % parallel.tensor_parallel == 0, code, "config",
        "parallel.sequence_parallel: got trainer.micro_batch_size x ", "trainer.seq_len = ", rows,
        " tokens, want a multiple of parallel.tensor_parallel (", parallel.tensor_parallel, ")");
    EVENKEEL_CHECK_CODE(
        model.attention.causal, code, "config",
        "model.attention.causal: got false, want true: a token that is seen can't be ",
        "predicted");
    EVENKEEL_CHECK_CODE(!data.path.empty(), code, "config", "data.path: got \"\", want ",
                        model.vocab_size >= 256
                            ? "a text file, a directory of text files or a file of tokens"
                            : "a file of the model's tokens (docs/data.md)");
    EVENKEEL_CHECK_CODE(model.vocab_size >= 256 || data.has_tokens(), code, "config",
                        "data.path: got a text, whose bytes are tokens 0 to 255, for "
                        "model.vocab_size ",
                        model.vocab_size, "; want a file of the model's tokens (docs/data.md)");
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
    RunConfig config;
    load_config([&](ConfigVisitor& v) { config.visit_fields(v); }, path, overrides);
    return config;
}

std::string replaced_by_method(const std::string& path, const std::vector<std::string>& overrides) {
    const auto sets = [&](const std::string& key) {
        return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& override) {
            return override.starts_with(key + "=");
        });
    };
    if (!sets("model.method")) return "";
    RunConfig defaults, file = load_run_config(path, {}), all = load_run_config(path, overrides);
    const auto visit = [](RunConfig& config) {
        return [&config](ConfigVisitor& v) { config.visit_fields(v); };
    };
    const auto given = differing_paths(visit(file), visit(defaults));
    std::string keys;
    for (const std::string& key : differing_paths(visit(all), visit(file))) {
        const bool in_file = std::find(given.begin(), given.end(), key) != given.end();
        if (!in_file || sets(key) || key == "model.method") continue;
        keys += (keys.empty() ? "" : ", ") + key;
    }
    return keys;
}

std::string to_json(RunConfig& config) {
    return to_json([&](ConfigVisitor& v) { config.visit_fields(v); });
}

std::string compact_text(RunConfig& config) {
    std::string text;
    append_section("", Json::parse(to_json(config)), text);
    return text;
}

std::string config_table() {
    RunConfig config;
    return to_markdown([&](ConfigVisitor& v) { config.visit_fields(v); });
}

}  // namespace evenkeel
