// What is to be modelled: a model, how ranks share it, and what the program that trains it does.
//
// evenkeel runs tensor-parallel x data-parallel. Pipelines, weights cut over data-parallel ranks, attention that writes
// its scores, and kernels that are not fused are here because published results have them.
#pragma once

#include <cstdint>

#include "framework/config.h"
#include "model/model_config.h"

namespace evenkeel::scaling {

// What backward makes again. The first four are evenkeel's (Recompute).
enum class Again {
    kNone,
    kElementwise,
    kAttention,
    kFull,
    kScores,  // scores, softmax and their product with v: "selective", Korthikanti et al. 2022, section 5
    kHalf,  // every second product, and all between products: torchtitan's selective checkpointing of operators
};
// Those of evenkeel, in the order of kAllRecompute.
inline constexpr Again kOwnAgain[] = {Again::kNone, Again::kElementwise, Again::kAttention,
                                      Again::kFull};
const char* name_of(Again again);  // as configurations and layouts have it
// What data-parallel ranks cut: nothing; master weights and moments (ZeRO 1); those, gradients and weights (ZeRO 3, FSDP).
enum class Cut { kNothing, kOptimizer, kWeights };
enum class AttentionKernel {
    kUnfused,  // scores go through memory
    kFlash,    // of sm_80 instructions
    kNative,   // written for the GPU
};

struct Layout {
    std::int64_t tensor_parallel = 1;
    std::int64_t pipeline_parallel = 1;
    std::int64_t pipeline_chunks =
        1;  // parts of a stage, interleaved (Narayanan et al. 2021, section 2.2)
    std::int64_t data_parallel = 1;
    bool sequence_parallel = false;
    Cut cut = Cut::kNothing;
    Again again = Again::kNone;
    std::int64_t micro_batch = 1;  // sequences
    std::int64_t batch = 1;        // sequences of a step, over all ranks
    std::int64_t seq_len = 1;

    std::int64_t gpus() const { return tensor_parallel * pipeline_parallel * data_parallel; }
    std::int64_t micro_batches() const { return batch / (data_parallel * micro_batch); }
    double tokens() const { return static_cast<double>(batch) * static_cast<double>(seq_len); }
    void visit_fields(ConfigVisitor& v);
};

struct Software {
    AttentionKernel attention = AttentionKernel::kFlash;
    bool fused = true;            // norms, rotation, activation and loss are one kernel each
    bool overlap_tensor = false;  // tensor-parallel sums run beside products, a part at a time
    bool overlap_pipeline = false;
    bool overlap_gradients =
        true;                      // data-parallel sums run beside backward of the last micro-batch
    bool overlap_weights = false;  // and gathers of updated weights beside forward of the first
    bool merged_parallel = false;  // parallel blocks sum once for both layers
    bool again_whole = false;      // full: also what nobody reads
    std::int64_t gradient_bytes = 4;  // of an element, summed and accumulated
    std::int64_t bucket_mib = 32;     // of gradients, a collective each; 0: all at once
    // Reduce-scatters and all-gathers over one rank a node take log2 steps where that is faster than a ring: NCCL from
    // 2.23 on (PAT).
    bool logarithmic = true;
    void visit_fields(ConfigVisitor& v);
};

struct StepPlan {
    ModelConfig model;
    Layout layout;
    Software software;  // as it stands: evenkeel
    // Of memory alone (StepShape).
    bool packed = false, async_checkpoints = false;
};

// Throws kConfig, one sentence, where the layout does not divide the model, the batch or the nodes.
void validate(const StepPlan& plan, std::int64_t gpus_per_node);

}  // namespace evenkeel::scaling
