// Every method on two ranks with a GPU each, and in fp32 on one too, against the same on CPUs.
#include <gtest/gtest.h>

#include <optional>

#include "framework/stream.h"
#include "model/method.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::train_steps;
using testing::TrainingCurve;
using testing::world;

class MethodsOnGpus : public ::testing::TestWithParam<const Method*> {};
INSTANTIATE_TEST_SUITE_P(,
                         MethodsOnGpus,
                         ::testing::ValuesIn(methods().begin(), methods().end()),
                         [](const auto& info) { return std::string(info.param->name); });

ParallelConfig tensor_parallel() {
    const bool own_gpus = device_count(Device::kCuda) >= world().size();
    return {.tensor_parallel = world().size(),
            .communication = own_gpus ? Communication::kNccl : Communication::kStaged};
}

ModelConfig model_of(const Method& method) {
    ModelConfig config = testing::small_gpu_model();
    apply_method(method.name, config);
    if (config.attention.softcap > 0.0) config.attention.softcap = 2.0;
    if (config.attention.qk_clip_threshold > 0.0) config.attention.qk_clip_threshold = 2.0;
    return config;
}

TEST_P(MethodsOnGpus, FollowTheCpu) {
    const ParallelConfig parallel = tensor_parallel();
    const ProcessGrid gpu_grid(world(), parallel, Device::kCuda);  // chooses this rank's GPU
    const Stream stream;
    const StreamScope scope(stream);
    const ProcessGrid cpu_grid(world(), parallel);
    ModelConfig config = model_of(*GetParam());
    LanguageModel gpu(gpu_grid, config, 1), cpu(cpu_grid, config, 1);
    config.type = ComputeType::kFp32;
    const testing::SoloGrid solo;
    LanguageModel exact(solo.grid, config, 1);
    TrainingCurve got = train_steps(gpu, 0, 2), rounded = train_steps(cpu, 0, 2),
                  want = train_steps(exact, 0, 2);
    // AdamW's first step goes by the signs of gradients, so that norms of later ones differ by luck.
    for (TrainingCurve* curve : {&got, &rounded, &want}) curve->norms.resize(1);
    testing::expect_follows(got, want, rounded);
    EXPECT_LT(got.losses.back(), got.losses.front());
}

TEST_P(MethodsOnGpus, FollowTheCpuCloselyInFp32) {
    const ProcessGrid gpus(world(), tensor_parallel(), Device::kCuda),
        cpus(world(), tensor_parallel());
    const Stream stream;
    const StreamScope scope(stream);
    ModelConfig config = model_of(*GetParam());
    config.type = ComputeType::kFp32;
    config.num_layers = 1;
    const auto compare = [&](const ProcessGrid& gpu_grid, const ProcessGrid& cpu_grid) {
        SCOPED_TRACE(concat("tensor parallel ", cpu_grid.tp_size()));
        LanguageModel gpu(gpu_grid, config, 1), cpu(cpu_grid, config, 1);
        const TrainingCurve got = train_steps(gpu, 0, 2, 1, 16);
        testing::expect_follows_in_fp32(got, train_steps(cpu, 0, 2, 1, 16));
    };
    compare(gpus, cpus);
    if (world().rank() != 0) return;
    const testing::SoloGrid gpu(Device::kCuda), cpu;
    compare(gpu.grid, cpu.grid);
}

}  // namespace
}  // namespace evenkeel
