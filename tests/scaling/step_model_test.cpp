// A step's time: operations against the model's own counts, messages and bubbles by hand.
#include "scaling/step_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

ModelConfig small_model() {
    ModelConfig model;
    model.vocab_size = 1024;
    model.num_layers = 4;
    model.width = 512;
    model.feed_forward_width = 1536;
    model.max_seq_len = 256;
    model.attention.num_heads = 8;
    model.attention.num_kv_heads = 8;
    model.attention.head_dim = 64;
    return model;
}

StepPlan small_plan() {
    StepPlan plan;
    plan.model = small_model();
    plan.layout.micro_batch = 2, plan.layout.batch = 8, plan.layout.seq_len = 256;
    return plan;
}

double flops_of(const std::vector<Op>& ops, Kind kind) {
    double sum = 0.0;
    for (const Op& op : ops) sum += op.kind == kind ? op.flops : 0.0;
    return sum;
}

// Numbers that make every part of a step easy to work out.
Hardware round_hardware() {
    Hardware h = load_hardware("h100");
    h.peak_teraflops = h.matmul_teraflops = 1000.0;
    h.attention_forward_teraflops = h.attention_backward_teraflops = 500.0;
    h.memory_gigabytes_per_second = 1000.0;
    h.node_gigabytes_per_second = 100.0, h.network_gigabytes_per_second = 10.0;
    h.node_latency_microseconds = h.network_latency_microseconds = 1.0;
    h.collective_latency_microseconds = 5.0;
    return h;
}
constexpr Shares kWhole = {1.0, 1.0, 1.0, 1.0, 0.0, 0.0};

TEST(LayerCostTest, OperationsAreTheModelsOwnCount) {
    for (const std::int64_t kv_heads : {8, 2}) {
        for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
            for (const std::int64_t P : {1, 2}) {
                StepPlan plan = small_plan();
                plan.model.attention.num_kv_heads = kv_heads;
                plan.model.activation = activation;
                plan.layout.tensor_parallel = P;
                const double layers = 4.0, tokens = 2.0 * 256.0;
                const double products = layers * (flops_of(layer_forward(plan), Kind::kProduct) +
                                                  flops_of(layer_backward(plan), Kind::kProduct)) +
                                        flops_of(head_forward(plan), Kind::kProduct) +
                                        flops_of(head_backward(plan), Kind::kProduct);
                const double counted = flops_per_token(plan.model, 0) * tokens;
                EXPECT_NEAR(products * static_cast<double>(P) / counted, 1.0, 1e-12)
                    << kv_heads << " key/value heads, P " << P;
                // Attention: a third of the model's forward; backward makes the scores once more.
                const double attention =
                    (flops_per_token(plan.model, 256) - flops_per_token(plan.model, 0)) * tokens /
                    (layers * static_cast<double>(P));
                EXPECT_NEAR(flops_of(layer_forward(plan), Kind::kAttention) / attention, 4.0 / 12.0,
                            1e-12);
                EXPECT_NEAR(flops_of(layer_backward(plan), Kind::kAttention) / attention,
                            10.0 / 12.0, 1e-12);
            }
        }
    }
}

TEST(LayerCostTest, AGptLayerHasTheOperationsOfNarayanan) {
    // 24 N h^2 forward in products (Narayanan et al. 2021, appendix), 4 N s h in attention over all pairs.
    StepPlan plan = small_plan();
    plan.model.activation = Activation::kGelu;
    plan.model.feed_forward_width = 4 * 512;
    plan.software.attention = AttentionKernel::kUnfused;
    const double N = 512.0, h = 512.0, s = 256.0;
    EXPECT_DOUBLE_EQ(flops_of(layer_forward(plan), Kind::kProduct), 24.0 * N * h * h);
    EXPECT_DOUBLE_EQ(flops_of(layer_backward(plan), Kind::kProduct), 48.0 * N * h * h);
    EXPECT_NEAR(flops_of(layer_forward(plan), Kind::kAttention), 4.0 * N * s * h, 1.0);
    EXPECT_NEAR(flops_of(layer_backward(plan), Kind::kAttention), 8.0 * N * s * h, 1.0);
}

TEST(LayerCostTest, WhatIsMadeAgainIsTheModelsOwnCount) {
    for (const Architecture architecture :
         {Architecture::kPreNorm, Architecture::kPostNorm, Architecture::kParallel}) {
        for (const Again again : {Again::kAttention, Again::kFull}) {
            StepPlan plan = small_plan();
            plan.model.architecture = architecture;
            plan.layout.again = again;
            plan.model.recompute = again == Again::kFull ? Recompute::kFull : Recompute::kAttention;
            const std::vector<Op> ops = layer_again(plan);
            const double made =
                4.0 * (flops_of(ops, Kind::kProduct) + flops_of(ops, Kind::kAttention));
            EXPECT_NEAR(made / (recomputed_flops_per_token(plan.model, 256) * 512.0), 1.0, 1e-12)
                << static_cast<int>(architecture) << " " << static_cast<int>(again);
        }
    }
}

TEST(LayerCostTest, ElementwiseOperationsAreMadeAgainWithoutProducts) {
    StepPlan plan = small_plan();
    plan.layout.again = Again::kElementwise;
    std::vector<Part> parts;
    for (const Op& op : layer_again(plan)) {
        EXPECT_EQ(op.kind, Kind::kMemory);
        parts.push_back(op.part);
    }
    std::vector<Part> expected = {Part::kFirstNorm, Part::kRotation, Part::kSecondNorm,
                                  Part::kActivation};
    if (plan.model.attention.qk_norm.kind == QkNormConfig::Kind::kNone)
        expected.erase(expected.begin() + 1);
    EXPECT_EQ(parts, expected);
    plan.model.architecture = Architecture::kPostNorm;  // its layers read the stream itself
    EXPECT_EQ(layer_again(plan).size(), expected.size() - 2);
}

TEST(LayerCostTest, SequenceParallelismCutsWhatBelongsToTheStream) {
    StepPlan plan = small_plan();
    plan.layout.tensor_parallel = 4;
    const auto bytes = [&](Part part) {
        for (const Op& op : layer_forward(plan)) {
            if (op.part == part) return op.bytes;
        }
        return 0.0;
    };
    const double norm = bytes(Part::kFirstNorm), activation = bytes(Part::kActivation);
    EXPECT_DOUBLE_EQ(norm, 4.0 * 512.0 * 512.0);
    EXPECT_DOUBLE_EQ(activation, 2.0 * 512.0 * 3.0 * 384.0);
    plan.layout.sequence_parallel = true;
    EXPECT_DOUBLE_EQ(bytes(Part::kFirstNorm), norm / 4.0);
    EXPECT_DOUBLE_EQ(bytes(Part::kActivation), activation);
}

TEST(LayerCostTest, AnOperationTakesTheLongerOfComputingAndMoving) {
    const Hardware h = round_hardware();
    const auto seconds = [&](Kind kind, double flops, double bytes, const Shares& shares) {
        return op_seconds(h, shares, AttentionKernel::kFlash, {Part::kQkv, kind, flops, bytes},
                          false);
    };
    EXPECT_DOUBLE_EQ(seconds(Kind::kProduct, 1e12, 1e8, kWhole), 1e-3);   // 1 PFLOP/s
    EXPECT_DOUBLE_EQ(seconds(Kind::kProduct, 1e12, 1e10, kWhole), 1e-2);  // 1 TB/s
    EXPECT_DOUBLE_EQ(seconds(Kind::kAttention, 1e12, 1e8, kWhole), 2e-3);
    EXPECT_DOUBLE_EQ(seconds(Kind::kMemory, 0.0, 1e9, kWhole), 1e-3);
    Shares shares = kWhole;
    shares.matmul = 0.5, shares.memory = 0.25, shares.kernel_microseconds = 7.0;
    EXPECT_DOUBLE_EQ(seconds(Kind::kProduct, 1e12, 1e8, shares), 2e-3 + 7e-6);
    EXPECT_DOUBLE_EQ(seconds(Kind::kMemory, 0.0, 1e9, shares), 4e-3 + 7e-6);
}

TEST(StepModelTest, ABubbleIsStagesLessOneOverPartsTimesMicroBatches) {
    EXPECT_DOUBLE_EQ(bubble_share(4, 1, 12), 0.25);
    EXPECT_DOUBLE_EQ(bubble_share(4, 3, 8), 0.125);
    EXPECT_DOUBLE_EQ(bubble_share(1, 1, 8), 0.0);
    StepPlan plan = small_plan();
    plan.layout.pipeline_parallel = 4;
    plan.software.overlap_pipeline = true;
    const StepTime time = predict_step(round_hardware(), kWhole, plan);
    EXPECT_NEAR(time.bubble / (time.products + time.attention + time.memory), 3.0 / 4.0, 1e-12);
    plan.layout.batch = 24;
    const StepTime longer = predict_step(round_hardware(), kWhole, plan);
    EXPECT_NEAR(longer.bubble / (longer.products + longer.attention + longer.memory), 3.0 / 12.0,
                1e-12);
    EXPECT_NEAR(longer.bubble, time.bubble, 1e-12);
}

TEST(StepModelTest, AStepOfOneGpuIsItsKernels) {
    const StepPlan plan = small_plan();
    const Hardware h = round_hardware();
    const StepTime time = predict_step(h, kWhole, plan);
    Seconds layer = seconds_of(h, kWhole, AttentionKernel::kFlash, layer_forward(plan), false);
    layer += seconds_of(h, kWhole, AttentionKernel::kFlash, layer_backward(plan), true);
    Seconds head = seconds_of(h, kWhole, AttentionKernel::kFlash, head_forward(plan), false);
    head += seconds_of(h, kWhole, AttentionKernel::kFlash, head_backward(plan), true);
    // 4 micro-batches of 4 layers and the head.
    EXPECT_NEAR(time.products, 4.0 * (4.0 * layer.products + head.products), 1e-12);
    EXPECT_NEAR(time.attention, 16.0 * layer.attention, 1e-12);
    // AdamW: 38 bytes a parameter at 1 TB/s.
    EXPECT_NEAR(time.optimizer, 38.0 * static_cast<double>(parameter_count(plan.model)) / 1e12,
                1e-15);
    EXPECT_EQ(time.tensor + time.data + time.pipeline + time.bubble + time.overlap + time.again,
              0.0);
    EXPECT_NEAR(time.total(), time.products + time.attention + time.memory + time.optimizer, 1e-15);
    EXPECT_NEAR(utilisation(h, plan, time.total()),
                flops_per_token(plan.model, 256) * 2048.0 / (1e15 * time.total()), 1e-12);
}

TEST(StepModelTest, TensorParallelSumsAreFourALayerAndTwoAtTheEnds) {
    StepPlan plan = small_plan();
    plan.layout.tensor_parallel = 8;
    const Hardware h = round_hardware();
    // 2 * 512 * 512 bytes: 2 * 7/8 * n / 1e11 in a ring and 14 us of steps, a tree's 6 us and 2 n / 1e11.
    const double n = 2.0 * 512.0 * 512.0;
    const double sum = 5e-6 + std::min(1.75 * n / 1e11 + 14e-6, 2.0 * n / 1e11 + 6e-6);
    const StepTime whole = predict_step(h, kWhole, plan);
    EXPECT_NEAR(whole.tensor, 4.0 * (4.0 * 4.0 + 2.0) * sum, 1e-12);
    EXPECT_EQ(whole.tensor_hidden, 0.0);
    // Sequence parallelism: two halves in place of each, and two gathers a layer beside products.
    plan.layout.sequence_parallel = true;
    const double half = 5e-6 + 0.875 * n / 1e11 + 7e-6;
    const StepTime cut = predict_step(h, kWhole, plan);
    EXPECT_NEAR(cut.tensor + cut.tensor_hidden, 4.0 * (4.0 * (8.0 + 2.0) + 4.0) * half, 1e-12);
    EXPECT_GE(cut.tensor, 4.0 * (4.0 * 8.0 + 4.0) * half - 1e-12);
}

TEST(StepModelTest, RecomputationSendsAgain) {
    StepPlan plan = small_plan();
    plan.layout.tensor_parallel = 8;
    const Hardware h = round_hardware();
    const double before = predict_step(h, kWhole, plan).tensor;
    const double sum = before / (4.0 * 18.0);
    for (const Again again : {Again::kElementwise, Again::kAttention}) {
        plan.layout.again = again;
        EXPECT_NEAR(predict_step(h, kWhole, plan).tensor, before, 1e-12);
    }
    plan.layout.again = Again::kFull;  // attention's output alone, in pre_norm
    EXPECT_NEAR(predict_step(h, kWhole, plan).tensor, before + 4.0 * 4.0 * sum, 1e-12);
    plan.software.again_whole = true;
    EXPECT_NEAR(predict_step(h, kWhole, plan).tensor, before + 4.0 * 4.0 * 2.0 * sum, 1e-12);
}

TEST(StepModelTest, GradientsAreSummedOnceAStep) {
    StepPlan plan = small_plan();
    plan.layout.data_parallel = 4, plan.layout.batch = 32;
    plan.software.bucket_mib = 0, plan.software.overlap_gradients = false;
    const Hardware h = round_hardware();
    const double W = static_cast<double>(parameter_count(plan.model));
    // Four ranks of one node: 2 * 3/4 * 4 W / 1e11 + 6 us, and 5 us.
    EXPECT_NEAR(predict_step(h, kWhole, plan).data, 1.5 * 4.0 * W / 1e11 + 11e-6, 1e-12);
    // A reduce-scatter of 4 W and a gather of 2 W; a quarter of the optimizer's work.
    plan.layout.cut = Cut::kOptimizer;
    const StepTime cut = predict_step(h, kWhole, plan);
    EXPECT_NEAR(cut.data, 0.75 * 6.0 * W / 1e11 + 2.0 * 8e-6, 1e-12);
    EXPECT_NEAR(cut.optimizer, (34.0 / 4.0 + 4.0) * W / 1e12, 1e-15);
    // Weights too: in each of 4 micro-batches two gathers and a reduce-scatter, in as many messages as layers.
    plan.layout.cut = Cut::kWeights;
    const StepTime weights = predict_step(h, kWhole, plan);
    EXPECT_NEAR(weights.data + weights.data_hidden,
                4.0 * (0.75 * 8.0 * W / 1e11 + 3.0 * 4.0 * 8e-6), 1e-12);
}

TEST(StepModelTest, WhatIsHiddenIsNoLongerThanWhatItHidesBehind) {
    StepPlan plan = small_plan();
    plan.layout.data_parallel = 16, plan.layout.batch = 32;  // one micro-batch
    const Hardware fast = round_hardware();
    Hardware slow = fast;
    slow.network_gigabytes_per_second = 0.01;
    const StepTime a = predict_step(fast, kWhole, plan), b = predict_step(slow, kWhole, plan);
    EXPECT_GT(b.data, a.data);
    const double backward = a.products + a.attention + a.memory;
    EXPECT_LE(b.data_hidden, backward);
    // Hidden communication costs what Shares says.
    Shares shares = kWhole;
    shares.overlap = 0.5;
    EXPECT_NEAR(predict_step(fast, shares, plan).overlap, 0.5 * a.data_hidden, 1e-15);
}

TEST(StepModelTest, GroupsLieOnNodesAsRanksAreNumbered) {
    Layout layout;
    layout.tensor_parallel = 4, layout.data_parallel = 6;
    EXPECT_EQ(tensor_group(layout, 8).per_node, 4);
    EXPECT_EQ(tensor_group(layout, 8).nodes, 1);
    EXPECT_EQ(data_group(layout, 8).per_node, 2);
    EXPECT_EQ(data_group(layout, 8).nodes, 3);
    layout.tensor_parallel = 1, layout.data_parallel = 12;  // 8 and 4: as if 4 a node
    EXPECT_EQ(data_group(layout, 8).per_node, 4);
    EXPECT_EQ(data_group(layout, 8).nodes, 3);
    layout.tensor_parallel = 16, layout.data_parallel = 6;
    EXPECT_EQ(tensor_group(layout, 8).per_node, 8);
    EXPECT_EQ(tensor_group(layout, 8).nodes, 2);
    EXPECT_EQ(data_group(layout, 8).per_node, 1);
    EXPECT_EQ(data_group(layout, 8).nodes, 6);
}

TEST(StepModelTest, LayoutsThatDoNotDivideAreRefused) {
    const auto complaint = [](const std::function<void(StepPlan&)>& change) -> std::string {
        StepPlan plan = small_plan();
        change(plan);
        try {
            predict_step(load_hardware("h100"), {}, plan);
            return "";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig);
            return error.what();
        }
    };
    EXPECT_EQ(
        complaint([](StepPlan& p) { p.layout.data_parallel = 3; }),
        "[scale] batch: got 8 sequences, want a multiple of data_parallel x micro_batch, 3 x 2");
    EXPECT_EQ(
        complaint([](StepPlan& p) { p.layout.tensor_parallel = 3; }),
        "[scale] tensor_parallel: got 3, want a divisor or a multiple of the 8 GPUs of a node");
    EXPECT_EQ(complaint([](StepPlan& p) { p.layout.pipeline_parallel = 5; }),
              "[scale] pipeline_parallel: got 5 stages, want no more than the 4 layers");
    EXPECT_EQ(complaint([](StepPlan& p) { p.layout.pipeline_chunks = 5; }),
              "[scale] pipeline_chunks: got 5 parts, want no more than the 4 layers of a stage");
    EXPECT_EQ(complaint([](StepPlan& p) { p.layout.micro_batch = 0; }),
              "[scale] micro_batch: got 0, want a positive number");
}

}  // namespace
}  // namespace evenkeel::scaling
