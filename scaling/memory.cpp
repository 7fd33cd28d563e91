#include "scaling/memory.h"

#include <algorithm>

#include "framework/error.h"
#include "model/usable_memory.h"

namespace evenkeel::scaling {
namespace {

Recompute recompute_of(Again again) {
    switch (again) {
        case Again::kNone:
            return Recompute::kNone;
        case Again::kElementwise:
            return Recompute::kElementwise;
        case Again::kAttention:
            return Recompute::kAttention;
        case Again::kFull:
            return Recompute::kFull;
        case Again::kScores:
        case Again::kHalf:
            break;
    }
    throw_error(ErrorCode::kConfig, "scale",
                "memory: got a form of recomputation that evenkeel does not have");
}

}  // namespace

MemoryPlan plan_memory(const StepPlan& plan) {
    const Layout& l = plan.layout;
    EVENKEEL_CHECK_CODE(l.cut != Cut::kWeights, ErrorCode::kConfig, "scale",
                        "memory: got weights cut over data-parallel ranks, which evenkeel does "
                        "not do");
    ModelConfig model = plan.model;
    model.recompute = recompute_of(l.again);
    const std::int64_t p = l.pipeline_parallel, v = l.pipeline_chunks, m = l.micro_batches();
    if (p > 1) model.num_layers = (model.num_layers + p - 1) / p;
    MemoryPlan memory = plan_memory(model, {.device = Device::kCuda,
                                            .tensor_parallel = l.tensor_parallel,
                                            .data_parallel = l.data_parallel,
                                            .zero_stage = l.cut == Cut::kOptimizer ? 1 : 0,
                                            .micro_batch_size = l.micro_batch,
                                            .micro_batches = m,
                                            .seq_len = l.seq_len,
                                            .sequence_parallel = l.sequence_parallel,
                                            .packed = plan.packed,
                                            .async_checkpoints = plan.async_checkpoints});
    if (p == 1) return memory;
    const double held =
        static_cast<double>(p) + static_cast<double>(p - 1) / static_cast<double>(v);
    memory.saved = static_cast<std::size_t>(
        static_cast<double>(memory.saved) *
        (v > 1 ? std::min(held, static_cast<double>(m)) : static_cast<double>(std::min(p, m))));
    return memory;
}

std::size_t usable_bytes(const Hardware& hardware) {
    constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
    constexpr double kMostGib = 1e9;  // of what a size can hold
    return usable_memory(static_cast<std::size_t>(std::min(hardware.memory_gib, kMostGib) * kGib));
}

double checkpoint_bytes(const ModelConfig& model) {
    return 12.0 * static_cast<double>(parameter_count(model));
}

}  // namespace evenkeel::scaling
