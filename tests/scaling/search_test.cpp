// Layouts: what they take of memory, and that the search returns the fastest that fits.
#include "scaling/search.h"

#include <gtest/gtest.h>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

// Llama 3's shape of 8 billion parameters.
ModelConfig model_8b() {
    ModelConfig model;
    model.vocab_size = 128256;
    model.num_layers = 32;
    model.width = 4096;
    model.feed_forward_width = 14336;
    model.max_seq_len = 8192;
    model.attention.num_heads = 32;
    model.attention.num_kv_heads = 8;
    model.attention.head_dim = 128;
    return model;
}

Space space_of(std::int64_t gpus, std::int64_t batch) {
    Space space;
    space.model = model_8b();
    space.gpus = gpus, space.batch = batch, space.seq_len = 8192;
    return space;
}

std::string complaint(const Hardware& hardware, const Space& space) {
    try {
        search(hardware, {}, space);
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
}

TEST(ScaleMemoryTest, WithoutAPipelineItIsTheMemoryPlan) {
    for (const std::int64_t P : {1, 4}) {
        for (const bool cut : {false, true}) {
            for (const auto& [again, recompute] :
                 {std::pair{Again::kNone, Recompute::kNone},
                  std::pair{Again::kElementwise, Recompute::kElementwise},
                  std::pair{Again::kAttention, Recompute::kAttention},
                  std::pair{Again::kFull, Recompute::kFull}}) {
                StepPlan plan;
                plan.model = model_8b();
                Layout& l = plan.layout;
                l.tensor_parallel = P, l.data_parallel = 8, l.sequence_parallel = P > 1;
                l.cut = cut ? Cut::kOptimizer : Cut::kNothing, l.again = again;
                l.micro_batch = 2, l.batch = 64, l.seq_len = 4096;
                ModelConfig model = plan.model;
                model.recompute = recompute;
                const MemoryPlan expected =
                    evenkeel::plan_memory(model, {.device = Device::kCuda,
                                                  .tensor_parallel = P,
                                                  .data_parallel = 8,
                                                  .zero_stage = cut ? 1 : 0,
                                                  .micro_batch_size = 2,
                                                  .micro_batches = 4,
                                                  .seq_len = 4096,
                                                  .sequence_parallel = P > 1});
                EXPECT_EQ(plan_memory(plan).total(), expected.total());
                EXPECT_EQ(evaluate(load_hardware("h100"), {}, plan).memory, expected.total());
            }
        }
    }
}

TEST(ScaleMemoryTest, APipelinesStageHoldsItsLayersAndSeveralMicroBatches) {
    StepPlan plan;
    plan.model = model_8b();
    plan.layout.micro_batch = 1, plan.layout.batch = 16, plan.layout.seq_len = 4096;
    const MemoryPlan whole = plan_memory(plan);
    plan.layout.pipeline_parallel = 4;
    const MemoryPlan stage = plan_memory(plan);
    // A quarter of the layers, and the activations of four micro-batches: as many as before, and the final norm's.
    EXPECT_NEAR(static_cast<double>(stage.saved) / static_cast<double>(whole.saved), 1.0, 0.05);
    EXPECT_LT(stage.parameters(), whole.parameters() * 2 / 5);
    plan.layout.pipeline_chunks = 2;
    EXPECT_NEAR(static_cast<double>(plan_memory(plan).saved) / static_cast<double>(stage.saved),
                (4.0 + 1.5) / 4.0, 1e-9);
    plan.layout.batch = 2;  // no more than there are
    EXPECT_LT(plan_memory(plan).saved, stage.saved);
}

TEST(ScaleMemoryTest, WhatEvenkeelDoesNotDoIsRefused) {
    StepPlan plan;
    plan.model = model_8b();
    plan.layout.cut = Cut::kWeights;
    EXPECT_THROW(plan_memory(plan), Error);
    plan.layout.cut = Cut::kNothing, plan.layout.again = Again::kScores;
    EXPECT_THROW(plan_memory(plan), Error);
}

TEST(SearchTest, NothingIsReturnedThatDoesNotFit) {
    Hardware hardware = load_hardware("h100");
    double before = 0.0;
    std::size_t fitted = 0;
    for (const double gib : {24.0, 32.0, 48.0, 79.1, 141.0, 400.0}) {
        hardware.memory_gib = gib;
        const Found found = search(hardware, {}, space_of(64, 512));
        const std::size_t usable = usable_bytes(hardware);
        for (const Candidate& candidate : found.best) {
            EXPECT_LE(candidate.memory, usable) << gib << " GiB";
            EXPECT_EQ(candidate.memory, plan_memory(candidate.plan).total());
            EXPECT_EQ(candidate.plan.layout.gpus(), 64);
        }
        // More memory never makes the best slower.
        const double best = found.best.empty() ? 0.0 : found.best.front().tokens_per_second();
        EXPECT_GE(best, before) << gib << " GiB";
        before = best;
        fitted += found.best.empty() ? 0 : 1;
        if (found.best.empty()) {
            ASSERT_TRUE(found.smallest);
            EXPECT_GT(found.smallest->memory, usable);
        }
    }
    EXPECT_GE(fitted, 4u);
}

TEST(SearchTest, NoChangeOfOneSettingThatFitsIsFaster) {
    const Hardware hardware = load_hardware("h100");
    for (const std::int64_t gpus : {8, 64, 512}) {
        const Found found = search(hardware, {}, space_of(gpus, 512));
        ASSERT_FALSE(found.best.empty()) << gpus;
        const Candidate& best = found.best.front();
        std::size_t changes = 0;
        for (const Change& change : changes_of(hardware, {}, best)) {
            if (!change.candidate || !change.fits) continue;
            ++changes;
            EXPECT_LE(change.candidate->tokens_per_second(),
                      best.tokens_per_second() * (1.0 + 1e-12))
                << gpus << " GPUs, " << change.setting;
        }
        EXPECT_GT(changes, 0u);
        for (std::size_t i = 1; i < found.best.size(); ++i) {
            EXPECT_LE(found.best[i].tokens_per_second(), found.best[i - 1].tokens_per_second());
        }
    }
}

TEST(SearchTest, TensorParallelGroupsStayInsideNodesUnlessAskedFor) {
    const Hardware hardware = load_hardware("h100");
    Space space = space_of(64, 512);
    for (const Candidate& c : search(hardware, {}, space).best) {
        EXPECT_LE(c.plan.layout.tensor_parallel, 8);
        EXPECT_EQ(c.plan.layout.pipeline_parallel, 1);
    }
    space.across_nodes = true;
    std::int64_t most = 0;
    for (const Candidate& c : search(hardware, {}, space).best) {
        most = std::max(most, c.plan.layout.tensor_parallel);
    }
    EXPECT_GT(most, 8);
    space.pipeline = true;
    most = 0;
    for (const Candidate& c : search(hardware, {}, space).best) {
        most = std::max(most, c.plan.layout.pipeline_parallel);
    }
    EXPECT_GT(most, 1);
}

TEST(SearchTest, ABatchThatCopiesDoNotDivideIsMadeALittleSmaller) {
    const Found found = search(load_hardware("h200"), {}, space_of(48, 500));
    ASSERT_FALSE(found.best.empty());
    for (const Candidate& c : found.best) {
        const Layout& l = c.plan.layout;
        EXPECT_EQ(l.batch % (l.data_parallel * l.micro_batch), 0);
        EXPECT_GE(l.batch, 475);
        EXPECT_LE(l.batch, 500);
    }
}

TEST(SearchTest, SpacesWithNothingInThemAreToldInOneSentence) {
    const Hardware hardware = load_hardware("h100");
    EXPECT_EQ(complaint(hardware, space_of(0, 512)), "[scale] gpus: got 0, want a positive number");
    EXPECT_EQ(complaint(hardware, space_of(8, 0)), "[scale] batch: got 0, want a positive number");
    EXPECT_EQ(complaint(hardware, space_of(7777, 512)),
              "[scale] search: no layout divides 7777 GPUs and a batch of 512 sequences; with "
              "tensor_parallel=1, its 7777 copies do not divide a batch of 512 sequences, nor one "
              "up to 5 % smaller");
    Space odd = space_of(8, 64);
    odd.model.attention.head_dim = 80;
    EXPECT_NE(complaint(hardware, odd).find("model.attention.head_dim"), std::string::npos);
}

}  // namespace
}  // namespace evenkeel::scaling
