#include "launch/eval_logits.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "framework/safetensors.h"
#include "framework/token_file.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

// Of one sequence [1, T], from all parts of the vocabulary: [T, V] on the CPU.
Tensor whole_logits(const ProcessGrid& grid, LanguageModel& model, const Tensor& tokens) {
    const Tensor local = model.local_logits(tokens).to(DType::kFloat32);  // [1, T, V/P]
    const std::int64_t length = local.size(1), columns = local.size(2), ranks = grid.tp_size();
    const Tensor parts =
        Tensor::uninitialized({ranks, length, columns}, DType::kFloat32, grid.device());
    grid.tensor().all_gather(local, parts);
    const Tensor gathered = parts.to(Device::kCpu);
    const Tensor whole = Tensor::uninitialized({length, ranks * columns}, DType::kFloat32);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        whole.slice(1, rank * columns, (rank + 1) * columns)
            .copy_from(gathered.slice(0, rank, rank + 1).view({length, columns}));
    }
    return whole;
}

// Under a name beside `path` first: a file of that name is whole.
void write_file(const std::string& path, const Tensor& logits, const SavedRun& run) {
    const std::string unfinished = path + ".unfinished";
    try {
        write_safetensors(unfinished, {{"logits", logits}}, {{"model", run.checkpoint}});
        std::filesystem::rename(unfinished, path);
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(unfinished, ignored);
        throw;
    }
    sync_directory(parent_directory(path));
}

}  // namespace

void write_logits(const EvalCommand& command, Communicator& world) {
    SavedRun run = open_saved_run(command.run, command.overrides, world.size());
    ModelConfig& config = run.config.model;
    if (run.config.device == Device::kCpu) config.type = ComputeType::kFp32;
    config.telemetry = false;
    config.validate(run.config.parallel.tensor_parallel, run.config.device);
    const Tensor tokens = read_token_file(command.tokens, config.vocab_size);
    const std::int64_t count = tokens.size(0), length = tokens.size(1), vocab = config.vocab_size;
    EVENKEEL_CHECK_CODE(length <= config.max_seq_len, ErrorCode::kConfig, "eval", command.tokens,
                        ": got sequences of ", length,
                        " tokens, want at most model.max_seq_len=", config.max_seq_len);
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    LanguageModel model(grid, config, 1);
    model.load_weights(*run.weights);

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
    write_file(command.logits, logits, run);
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

}  // namespace evenkeel
