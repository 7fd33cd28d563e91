#include "launch/memory_advice.h"

#include <algorithm>

#include "framework/log.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kMostRanks = 1024;

// Makes the micro-batch the largest that is no larger than it was and fits; false where none does.
bool fit_micro_batch(RunConfig& config, int world_size, std::size_t available) {
    const std::int64_t ranks = world_size / config.parallel.tensor_parallel;
    if (ranks == 0 || config.trainer.batch_size % ranks != 0) return false;
    const std::int64_t sequences = config.trainer.batch_size / ranks;
    for (std::int64_t size = std::min(config.trainer.micro_batch_size, sequences); size > 0;
         --size) {
        if (sequences % size != 0) continue;
        if (config.parallel.sequence_parallel &&
            size * config.trainer.seq_len % config.parallel.tensor_parallel != 0) {
            continue;
        }
        config.trainer.micro_batch_size = size;
        if (plan_memory(config, world_size).total() <= available) return true;
    }
    return false;
}

// The same, or else with more that backward makes again.
bool fit(RunConfig& config, int world_size, std::size_t available) {
    const RunConfig before = config;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kAttention, Recompute::kFull}) {
        if (recompute < before.model.recompute) continue;
        config = before;
        config.model.recompute = recompute;
        if (fit_micro_batch(config, world_size, available)) return true;
    }
    return false;
}

bool is_valid(const RunConfig& config) {
    try {
        config.model.validate(config.parallel.tensor_parallel, config.device);
        return true;
    } catch (const Error&) {
        return false;
    }
}

std::string settings(const RunConfig& config, const RunConfig& before, int world_size) {
    std::string text;
    const auto add = [&](const char* name, std::int64_t value, std::int64_t old) {
        if (value != old) text += concat(text.empty() ? "" : " ", name, "=", value);
    };
    add("parallel.tensor_parallel", config.parallel.tensor_parallel,
        before.parallel.tensor_parallel);
    add("trainer.micro_batch_size", config.trainer.micro_batch_size,
        before.trainer.micro_batch_size);
    if (config.model.recompute != before.model.recompute) {
        const bool full = config.model.recompute == Recompute::kFull;
        text += concat(text.empty() ? "" : " ", "model.recompute=", full ? "full" : "attention");
    }
    return concat(text, " fits: ", bytes_text(plan_memory(config, world_size).total()), " a rank");
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, int world_size) {
    const std::int64_t tensor_parallel = config.parallel.tensor_parallel;
    const auto data_parallel = static_cast<int>(world_size / tensor_parallel);
    return plan_memory(config.model, {.device = config.device,
                                      .tensor_parallel = tensor_parallel,
                                      .data_parallel = data_parallel,
                                      .zero_stage = config.parallel.zero_stage,
                                      .micro_batch_size = config.trainer.micro_batch_size,
                                      .micro_batches = config.trainer.accumulation(data_parallel),
                                      .seq_len = config.trainer.seq_len,
                                      .sequence_parallel = config.parallel.sequence_parallel});
}

std::string what_fits(const RunConfig& config, int world_size, std::size_t available) {
    RunConfig fitted = config;
    if (fit(fitted, world_size, available)) return settings(fitted, config, world_size);
    for (std::int64_t ranks = 2 * config.parallel.tensor_parallel; ranks <= kMostRanks;
         ranks += config.parallel.tensor_parallel) {
        fitted = config;
        fitted.parallel.tensor_parallel = ranks;
        const int world = std::max(world_size, static_cast<int>(ranks));
        if (world % ranks != 0 || !is_valid(fitted)) continue;
        if (!fit(fitted, world, available)) continue;
        const std::string more =
            world > world_size ? concat(", with ", world, " ranks in all",
                                        config.device == Device::kCpu ? ", on more machines" : "")
                               : "";
        return settings(fitted, config, world) + more;
    }
    return "no micro-batch, no model.recompute and no number of tensor-parallel ranks makes it "
           "fit: shorten "
           "trainer.seq_len or make the model smaller";
}

void check_memory(const RunConfig& config, int world_size, const DeviceMemory& memory) {
    const std::size_t planned = plan_memory(config, world_size).total();
    if (memory.total == 0 || planned <= memory.free) return;
    const std::string text =
        concat("memory: training takes ", bytes_text(planned), " a rank, and ",
               config.device == Device::kCuda ? "its GPU" : "its share of this machine", " has ",
               bytes_text(memory.free), " free of ", bytes_text(memory.total), "; ",
               what_fits(config, world_size, memory.free));
    const bool impossible = config.device == Device::kCuda || planned > memory.total;
    if (impossible) throw_error(ErrorCode::kConfig, "train", text);
    log_warning(text);
}

std::size_t total_with_graphs(const RunConfig& config, int world_size) {
    const auto data_parallel = static_cast<int>(world_size / config.parallel.tensor_parallel);
    const std::size_t graphs = config.trainer.accumulation(data_parallel) > 1 ? 2 : 1;
    const MemoryPlan plan = plan_memory(config, world_size);
    return plan.total() + graphs * plan.passes();
}

}  // namespace evenkeel
