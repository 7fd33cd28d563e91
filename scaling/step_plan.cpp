#include "scaling/step_plan.h"

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

constexpr const char* kAgainNames[] = {"none", "elementwise", "attention",
                                       "full", "scores",      "half"};

}  // namespace

const char* name_of(Again again) { return kAgainNames[static_cast<int>(again)]; }

void Layout::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kCut[] = {"nothing", "optimizer", "weights"};
    v.field("tensor_parallel", tensor_parallel, "ranks that share every layer");
    v.field("pipeline_parallel", pipeline_parallel, "stages, each with a part of the layers");
    v.field("pipeline_chunks", pipeline_chunks, "interleaved parts of a stage");
    v.field("data_parallel", data_parallel, "copies of the model");
    v.field("sequence_parallel", sequence_parallel,
            "tensor-parallel ranks share the tokens between products");
    v.choice("cut", cut, kCut, "what data-parallel ranks cut");
    v.choice("recompute", again, kAgainNames, "what backward makes again");
    v.field("micro_batch", micro_batch, "sequences of a pass");
    v.field("batch", batch, "sequences of a step");
    v.field("seq_len", seq_len, "tokens of a sequence");
}

void Software::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kAttention[] = {"unfused", "flash", "native"};
    v.choice("attention", attention, kAttention, "the kernel");
    v.field("fused", fused, "norms, rotation, activation and loss are one kernel each");
    v.field("overlap_tensor", overlap_tensor, "tensor-parallel sums run beside products");
    v.field("overlap_pipeline", overlap_pipeline, "stages send beside computing");
    v.field("overlap_gradients", overlap_gradients, "data-parallel sums run beside backward");
    v.field("overlap_weights", overlap_weights, "updated weights are gathered beside forward");
    v.field("merged_parallel", merged_parallel, "parallel blocks sum once for both layers");
    v.field("again_whole", again_whole, "recompute full makes also what nobody reads");
    v.field("gradient_bytes", gradient_bytes, "of an element");
    v.field("bucket_mib", bucket_mib, "gradients of a collective; 0: all");
    v.field("logarithmic", logarithmic,
            "reduce-scatters and gathers over one rank a node take log2 steps");
}

void validate(const StepPlan& plan, std::int64_t gpus_per_node) {
    const Layout& l = plan.layout;
    const auto check = [](bool right, const auto&... text) {
        EVENKEEL_CHECK_CODE(right, ErrorCode::kConfig, "scale", text...);
    };
    const auto positive = [&](const char* name, std::int64_t value) {
        check(value > 0, name, ": got ", value, ", want a positive number");
    };
    positive("tensor_parallel", l.tensor_parallel);
    positive("pipeline_parallel", l.pipeline_parallel);
    positive("pipeline_chunks", l.pipeline_chunks);
    positive("data_parallel", l.data_parallel);
    positive("micro_batch", l.micro_batch);
    positive("batch", l.batch);
    positive("seq_len", l.seq_len);
    positive("gradient_bytes", plan.software.gradient_bytes);
    const std::int64_t P = l.tensor_parallel;
    check(gpus_per_node % P == 0 || P % gpus_per_node == 0, "tensor_parallel: got ", P,
          ", want a divisor or a multiple of the ", gpus_per_node, " GPUs of a node");
    check(l.batch % (l.data_parallel * l.micro_batch) == 0, "batch: got ", l.batch,
          " sequences, want a multiple of data_parallel x micro_batch, ", l.data_parallel, " x ",
          l.micro_batch);
    const std::int64_t layers = plan.model.num_layers;
    check(layers >= l.pipeline_parallel, "pipeline_parallel: got ", l.pipeline_parallel,
          " stages, want no more than the ", layers, " layers");
    const std::int64_t most = (layers + l.pipeline_parallel - 1) / l.pipeline_parallel;
    check(l.pipeline_chunks <= most, "pipeline_chunks: got ", l.pipeline_chunks,
          " parts, want no more than the ", most, " layers of a stage");
}

}  // namespace evenkeel::scaling
