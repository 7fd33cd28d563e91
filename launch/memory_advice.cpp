#include "launch/memory_advice.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "framework/log.h"
#include "model/usable_memory.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kMostRanks = 1024;

// "; each by itself: parallel.zero_stage=1 saves 1.20 GiB, model.recompute=full 800 MiB"
std::string savings_text(const RunConfig& config, int world_size) {
    std::string text;
    for (const Saving& saving : savings(config, world_size)) {
        text += concat(text.empty() ? "; each by itself: " : ", ", saving.setting,
                       text.empty() ? " saves " : " ", bytes_text(saving.bytes));
    }
    return text;
}

// What can be set that changes no result, or none but its last digits, and takes no time worth the name.
struct FreeSetting {
    const char* text;
    bool (*turn_on)(RunConfig&, int world_size);  // whether that changes anything
};
constexpr FreeSetting kFreeSettings[] = {
    {"parallel.zero_stage=1",
     [](RunConfig& config, int world_size) {
         if (config.parallel.zero_stage == 1) return false;
         config.parallel.zero_stage = 1;
         return world_size > config.parallel.tensor_parallel;
     }},
    {"parallel.sequence_parallel=true",
     [](RunConfig& config, int) {
         if (config.parallel.sequence_parallel) return false;
         config.parallel.sequence_parallel = true;
         return config.parallel.tensor_parallel > 1;
     }},
};

// A rule of training with sequence parallelism.
bool shares_tokens(const RunConfig& config) {
    return !config.parallel.sequence_parallel || config.trainer.micro_batch_size *
                                                         config.trainer.seq_len %
                                                         config.parallel.tensor_parallel ==
                                                     0;
}

// The configuration itself, with the free setting that saves most, with the other, and with both: as far as there are.
std::vector<RunConfig> with_free_settings(const RunConfig& config, int world_size) {
    std::vector<RunConfig> single, all = {config};
    RunConfig both = config;
    for (const FreeSetting& setting : kFreeSettings) {
        RunConfig changed = config;
        if (!setting.turn_on(changed, world_size) || !shares_tokens(changed)) continue;
        setting.turn_on(both, world_size);
        single.push_back(changed);
    }
    const auto total = [&](const RunConfig& c) { return plan_memory(c, world_size).total(); };
    std::stable_sort(single.begin(), single.end(),
                     [&](const RunConfig& a, const RunConfig& b) { return total(a) < total(b); });
    all.insert(all.end(), single.begin(), single.end());
    if (single.size() > 1) all.push_back(both);
    return all;
}

// Makes the micro-batch the largest that is no larger than it was and fits, with as few free settings as that takes;
// false where none does.
bool fit_micro_batch(RunConfig& config, int world_size, std::size_t available) {
    const std::int64_t ranks = world_size / config.parallel.tensor_parallel;
    if (ranks == 0 || config.trainer.batch_size % ranks != 0) return false;
    const std::int64_t sequences = config.trainer.batch_size / ranks;
    for (std::int64_t size = std::min(config.trainer.micro_batch_size, sequences); size > 0;
         --size) {
        if (sequences % size != 0) continue;
        RunConfig smaller = config;
        smaller.trainer.micro_batch_size = size;
        for (const RunConfig& candidate : with_free_settings(smaller, world_size)) {
            if (!shares_tokens(candidate)) continue;
            if (plan_memory(candidate, world_size).total() > available) continue;
            config = candidate;
            return true;
        }
    }
    return false;
}

// The same, or else with another choice of what backward makes again, that which takes least time first.
bool fit(RunConfig& config, int world_size, std::size_t available) {
    const RunConfig before = config;
    std::vector<Recompute> choices = {before.model.recompute};
    std::copy(std::begin(kAllRecompute), std::end(kAllRecompute), std::back_inserter(choices));
    for (const Recompute recompute : choices) {
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

std::string text_of(Recompute recompute) { return concat("model.recompute=", name_of(recompute)); }

std::string settings(const RunConfig& config, const RunConfig& before, int world_size) {
    std::string text;
    const auto add = [&](const char* name, std::int64_t value, std::int64_t old) {
        if (value != old) text += concat(text.empty() ? "" : " ", name, "=", value);
    };
    add("parallel.tensor_parallel", config.parallel.tensor_parallel,
        before.parallel.tensor_parallel);
    add("trainer.micro_batch_size", config.trainer.micro_batch_size,
        before.trainer.micro_batch_size);
    add("parallel.zero_stage", config.parallel.zero_stage, before.parallel.zero_stage);
    if (config.parallel.sequence_parallel != before.parallel.sequence_parallel) {
        text += concat(text.empty() ? "" : " ", "parallel.sequence_parallel=true");
    }
    if (config.model.recompute != before.model.recompute) {
        text += concat(text.empty() ? "" : " ", text_of(config.model.recompute));
    }
    return concat(text, " fits: ", bytes_text(plan_memory(config, world_size).total()), " a rank");
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, int world_size) {
    const std::int64_t tensor_parallel = config.parallel.tensor_parallel;
    const auto data_parallel = static_cast<int>(world_size / tensor_parallel);
    return plan_memory(config.model,
                       {.device = config.device,
                        .tensor_parallel = tensor_parallel,
                        .data_parallel = data_parallel,
                        .zero_stage = config.parallel.zero_stage,
                        .micro_batch_size = config.trainer.micro_batch_size,
                        .micro_batches = config.trainer.accumulation(data_parallel),
                        .seq_len = config.trainer.seq_len,
                        .sequence_parallel = config.parallel.sequence_parallel,
                        .packed = config.data.has_tokens() &&
                                  config.data.packing == DataConfig::Packing::kDocuments,
                        .async_checkpoints = config.trainer.checkpoint_async});
}

std::vector<Saving> savings(const RunConfig& config, int world_size) {
    const std::size_t now = plan_memory(config, world_size).total();
    std::vector<Saving> all;
    const auto add = [&](const std::string& text, const RunConfig& changed) {
        const std::size_t total = plan_memory(changed, world_size).total();
        if (total < now) all.push_back({text, now - total});
    };
    for (const FreeSetting& setting : kFreeSettings) {
        RunConfig changed = config;
        if (!setting.turn_on(changed, world_size) || !shares_tokens(changed)) continue;
        add(setting.text, changed);
    }
    for (const Recompute recompute : kAllRecompute) {
        if (recompute == config.model.recompute) continue;
        RunConfig changed = config;
        changed.model.recompute = recompute;
        add(text_of(recompute), changed);
    }
    if (config.trainer.micro_batch_size > 1) {
        RunConfig changed = config;
        std::int64_t& size = changed.trainer.micro_batch_size;
        do {
            --size;
        } while (config.trainer.micro_batch_size % size != 0);
        if (shares_tokens(changed)) add(concat("trainer.micro_batch_size=", size), changed);
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Saving& a, const Saving& b) { return a.bytes > b.bytes; });
    return all;
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
    return "no micro-batch, no parallel.zero_stage, no parallel.sequence_parallel, no "
           "model.recompute and no number of tensor-parallel ranks makes it "
           "fit: shorten "
           "trainer.seq_len or make the model smaller";
}

DeviceMemory share_of_memory(Device device, Communicator& world) {
    const int ranks = world.on_node().size;
    const int devices = device_count(device);
    const auto sharing = static_cast<std::size_t>((ranks + devices - 1) / devices);
    const DeviceMemory memory = memory_of(device);
    return {memory.free / sharing, memory.total / sharing};
}

void check_memory(const RunConfig& config, int world_size, const DeviceMemory& memory) {
    const std::size_t planned = plan_memory(config, world_size).total();
    if (memory.total == 0) return;
    const bool on_gpu = config.device == Device::kCuda;
    const std::size_t usable = on_gpu ? usable_memory(memory.total) : memory.total;
    if (planned <= memory.free) {
        if (planned <= usable) return;
        log_warning(concat("memory: training takes ", bytes_text(planned),
                           " a rank, more than the ", bytes_text(usable),
                           " that a plan should use of the GPU's ", bytes_text(memory.total),
                           ": the CUDA context and NCCL's buffers want the rest; ",
                           what_fits(config, world_size, usable)));
        return;
    }
    const std::string text =
        concat("memory: training takes ", bytes_text(planned), " a rank, and ",
               on_gpu ? "its GPU" : "its share of this machine", " has ", bytes_text(memory.free),
               " free of ", bytes_text(memory.total), "; ",
               what_fits(config, world_size, std::min(memory.free, usable)),
               savings_text(config, world_size));
    const bool impossible = on_gpu || planned > memory.total;
    if (impossible) throw_error(ErrorCode::kConfig, "train", text);
    log_warning(text);
}

std::size_t total_with_graphs(const RunConfig& config, int world_size) {
    const auto data_parallel = static_cast<int>(world_size / config.parallel.tensor_parallel);
    const std::size_t graphs = config.trainer.accumulation(data_parallel) > 1 ? 2 : 1;
    const MemoryPlan plan = plan_memory(config, world_size);
    return plan.total() + graphs * plan.passes();
}

bool records_graphs(const RunConfig& config, const ProcessGrid& grid, const DeviceMemory& memory) {
    if (config.device == Device::kCpu || !config.cuda_graphs) return false;
    if (!grid.tensor().fits_graphs() || !grid.data().fits_graphs()) return false;
    Communicator& world = grid.world();
    const std::size_t taken = total_with_graphs(config, world.size());
    const bool lacks_room =
        memory.total > 0 && taken > std::min(memory.free, usable_memory(memory.total));
    if (world.all_reduce_scalar(lacks_room ? 1.0 : 0.0, ReduceOp::kMax) == 0.0) return true;
    log_info(concat("graphs  none: with them training would take ", bytes_text(taken),
                    " a rank, more than a GPU has free beside its reserve"));
    return false;
}

}  // namespace evenkeel
