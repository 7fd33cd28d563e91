// evenkeel bench step: whole steps of training one configuration.
#include <memory>
#include <optional>

#include "framework/data/token_file.h"
#include "framework/optimizer/adamw.h"
#include "framework/rng.h"
#include "framework/stream.h"
#include "framework/training/gradients.h"
#include "launch/bench_call.h"
#include "launch/memory_advice.h"
#include "launch/run_config.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

// Tokens and the ones that follow them: the first rows of a file, or random ones.
std::vector<Batch> make_batches(const RunConfig& config,
                                const std::string& path,
                                int data_parallel) {
    const std::int64_t count = config.trainer.accumulation(data_parallel);
    const std::int64_t B = config.trainer.micro_batch_size, T = config.trainer.seq_len;
    const std::int64_t vocab = config.model.vocab_size;
    Tensor tokens;
    if (path.empty()) {
        tokens = Tensor::uninitialized({count * B, T + 1}, DType::kInt32);
        const CounterRng rng(1, purpose("bench"));
        for (std::int64_t i = 0; i < tokens.numel(); ++i) {
            tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>(
                rng.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab)));
        }
    } else {
        tokens = read_token_file(path, vocab);
        EVENKEEL_CHECK_CODE(tokens.size(0) >= count * B && tokens.size(1) == T + 1,
                            ErrorCode::kConfig, "bench", path, ": got ", tokens.size(0),
                            " sequences of ", tokens.size(1), " tokens, want ", count * B, " of ",
                            T + 1, " (trainer.seq_len and the one that follows)");
    }
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < count; ++i) {
        const Tensor rows = tokens.slice(0, i * B, (i + 1) * B);
        batches.push_back(
            {rows.slice(1, 0, T).contiguous(), rows.slice(1, 1, T + 1).contiguous(), {}});
    }
    return batches;
}

}  // namespace

void run_bench_step(const BenchStepCommand& command, Communicator& world) {
    RunConfig config = load_run_config(command.config, command.overrides);
    if (config.data.path.empty()) config.data.path = "none.bin";  // nothing of it is read
    config.validate(world.size());
    start_watchdog(world, {.timeout_seconds = config.parallel.timeout_seconds});

    bench::MemoryGrowth memory;
    const ProcessGrid grid(world, config.parallel, config.device);
    const bool on_gpu = config.device == Device::kCuda;
    // As in training: the default stream's work cannot be recorded as a graph.
    std::optional<Stream> stream;
    std::optional<StreamScope> scope;
    if (on_gpu) scope.emplace(stream.emplace());
    const bool graphs = records_graphs(config, grid, share_of_memory(config.device, world));
    LanguageModel model(grid, config.model, static_cast<std::uint64_t>(config.trainer.seed));
    model.set_graphs(graphs);
    if (!config.trainer.init_from.empty()) model.load_weights(config.trainer.init_from);
    const std::vector<Batch> batches = make_batches(config, command.tokens, grid.dp_size());
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, config.device);
    bench::CallResult result;
    result.shape =
        concat("B=", config.trainer.batch_size, " T=", config.trainer.seq_len,
               " C=", config.model.width, " L=", config.model.num_layers,
               " V=", config.model.vocab_size, ", ", name_of(to_dtype(config.model.type)), ", ",
               world.size(), world.size() == 1 ? " rank" : " ranks");
    const auto step = [&] {
        compute_gradients(model, batches, numbers);
        adamw_step(model.buckets(), config.optimizer, config.schedule.peak_lr,
                   config.trainer.clip_norm, numbers,
                   static_cast<std::int64_t>(result.losses.size()) + 1);
        model.finish_update();
        model.head_metrics();
        result.losses.push_back(numbers.to(Device::kCpu).data<double>()[kLossIndex]);
        model.take_communication();
    };
    memory.forget_peak();
    step();  // warms up
    if (command.steps > 0) {
        result.seconds = bench::times_of(command.steps, step);
    } else {
        // On the CPU two more still map blocks that the first needed once; on a GPU the first ones run before passes
        // are recorded as graphs.
        for (int i = 1; i < (on_gpu ? 5 : 3); ++i) step();
        result.seconds = bench::times_within(command.seconds, step, &world);
    }
    const double own =
        on_gpu ? static_cast<double>(Buffer::peak_bytes(Device::kCuda)) : memory.peak_bytes();
    result.peak_bytes = world.all_reduce_scalar(own, ReduceOp::kMax);
    const double tokens = static_cast<double>(config.trainer.batch_size * config.trainer.seq_len);
    result.tokens_per_second = tokens / bench::median(result.seconds);
    result.tflops_per_rank = 1e-12 * result.tokens_per_second *
                             model.flops_per_token(config.trainer.seq_len) / world.size();
    if (world.rank() == 0) bench::print(result, command.json);
}

}  // namespace evenkeel
