#include "launch/eval_logits.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "framework/data/token_file.h"
#include "framework/json.h"
#include "framework/storage/replace_file.h"
#include "framework/storage/safetensors.h"
#include "launch/saved_run.h"
#include "model/retrofit/retrofit.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

// Of one sequence [1, T]: [T, V] on the CPU.
Tensor whole_logits(const ProcessGrid& grid, LanguageModel& model, const Tensor& tokens) {
    const Tensor local = model.local_logits(tokens);  // [1, T, V/P]
    return gather_vocabulary(grid, local.view({local.size(1), local.size(2)}),
                             model.config().vocab_size);
}

// Whether anything can be written to --logits is found before anything is computed.
void check_target(const EvalCommand& command, const SavedRun& run) {
    namespace fs = std::filesystem;
    const std::string& path = command.logits;
    check_replaceable(path);
    std::error_code ignored;  // that there is no such file, for one
    const auto is_same = [&](const std::string& a, const std::string& b) {
        return fs::equivalent(a, b, ignored) && !ignored;
    };
    EVENKEEL_CHECK_CODE(!is_same(path, command.tokens), ErrorCode::kConfig, "eval",
                        "--logits: got ", path, ", the file of --tokens; want another");
    EVENKEEL_CHECK_CODE(!is_same(parent_directory(path), run.checkpoint), ErrorCode::kConfig,
                        "eval", "--logits: got ", path,
                        ", among the files of the model; want another directory");
}

void write_logits(const EvalCommand& command,
                  const SavedRun& run,
                  const ProcessGrid& grid,
                  LanguageModel& model,
                  const Tensor& tokens) {
    const std::int64_t count = tokens.size(0), length = tokens.size(1);
    const std::int64_t vocab = run.config.model.vocab_size;
    // Data-parallel ranks take a sequence each, in turn; who has none left repeats the last.
    const Tensor logits = Tensor::uninitialized({count, length, vocab}, DType::kFloat32);
    const std::int64_t ranks = grid.dp_size();
    for (std::int64_t first = 0; first < count; first += ranks) {
        const std::int64_t mine = std::min<std::int64_t>(first + grid.dp_rank(), count - 1);
        const Tensor whole =
            whole_logits(grid, model, tokens.slice(0, mine, mine + 1).contiguous());
        const Tensor all = Tensor::uninitialized({ranks, length, vocab}, DType::kFloat32);
        grid.data().host().all_gather(whole, all);
        const std::int64_t taken = std::min(ranks, count - first);
        logits.slice(0, first, first + taken).copy_from(all.slice(0, 0, taken));
    }
    if (!model.is_main_rank()) return;
    replace_file(command.logits, [&](const std::string& unfinished) {
        write_safetensors(unfinished, {{"logits", logits}}, {{"model", run.checkpoint}});
    });
    if (command.json) {
        const nlohmann::ordered_json out = {
            {"checkpoint", run.checkpoint}, {"step", run.step}, {"logits", command.logits},
            {"sequences", count},           {"tokens", length}, {"vocabulary", vocab}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "checkpoint  " << run.checkpoint << "\nlogits      " << command.logits << ": "
              << count << " sequences of " << length << " tokens, " << vocab << " logits each\n";
}

// Of the token that follows, over all of the file.
void print_loss(const EvalCommand& command,
                const SavedRun& run,
                const ProcessGrid& grid,
                LanguageModel& model,
                const Tensor& tokens) {
    const std::int64_t count = tokens.size(0), length = tokens.size(1) - 1;
    double sum = 0.0;
    for (std::int64_t i = grid.dp_rank(); i < count; i += grid.dp_size()) {
        const Tensor row = tokens.slice(0, i, i + 1);
        sum += model.evaluate(
            {row.slice(1, 0, length).contiguous(), row.slice(1, 1, length + 1).contiguous(), {}});
    }
    const double loss = model.data_parallel_mean(sum) * static_cast<double>(grid.dp_size()) /
                        static_cast<double>(count);
    if (!model.is_main_rank()) return;
    if (command.json) {
        const nlohmann::ordered_json out = {{"checkpoint", run.checkpoint},
                                            {"step", run.step},
                                            {"loss", loss},
                                            {"sequences", count},
                                            {"tokens", count * length}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "checkpoint   " << run.checkpoint << "\nloss         " << format("%.4f", loss)
              << " nats/token\nmeasured on  " << count << (count == 1 ? " sequence" : " sequences")
              << ", " << grouped(count * length) << " tokens that follow another\n";
}

}  // namespace

void eval_tokens(const EvalCommand& command, Communicator& world) {
    SavedRun run = open_saved_run(command.run, command.overrides, readers_of(world));
    ModelConfig& config = run.config.model;
    if (run.config.device == Device::kCpu) config.type = ComputeType::kFp32;
    config.telemetry = false;
    config.validate(run.config.parallel.tensor_parallel, run.config.device);
    const Tensor tokens = read_token_file(command.tokens, config.vocab_size);
    const bool only_loss = command.logits.empty();
    if (!only_loss) check_target(command, run);
    const std::int64_t length = tokens.size(1) - (only_loss ? 1 : 0);
    EVENKEEL_CHECK_CODE(length >= 1, ErrorCode::kConfig, "eval", command.tokens,
                        ": got sequences of 1 token, want 2 or more: the loss is that of the next "
                        "token");
    EVENKEEL_CHECK_CODE(length <= config.max_seq_len, ErrorCode::kConfig, "eval", command.tokens,
                        ": got sequences of ", tokens.size(1), " tokens, want at most ",
                        config.max_seq_len + tokens.size(1) - length,
                        " (model.max_seq_len=", config.max_seq_len, ")");
    start_watchdog(world, {.timeout_seconds = run.config.parallel.timeout_seconds});
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    LanguageModel model(grid, config, 1);
    model.load_weights(*run.weights);
    check_finite_weights(grid, model, "eval");
    if (only_loss) return print_loss(command, run, grid, model, tokens);
    write_logits(command, run, grid, model, tokens);
}

}  // namespace evenkeel
