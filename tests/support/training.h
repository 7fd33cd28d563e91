// Short training runs of small models, and how near one must stay to another.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/optimizer/adamw.h"
#include "tests/support/tiny_model.h"

namespace evenkeel::testing {

// Small, and in what the kernels for GPUs take. Heads for two tensor-parallel ranks.
inline ModelConfig small_gpu_model() {
    ModelConfig config = tiny_model();
    config.width = 64;
    config.type = ComputeType::kBf16;
    config.attention.num_heads = 4;
    config.attention.num_kv_heads = 2;
    config.attention.head_dim = 64;
    return config;
}

// The rows of a global batch that a data-parallel rank sees.
inline Batch part_of(const Batch& batch, const TrainableModel& model) {
    const std::int64_t rows = batch.tokens.size(0) / model.data_parallel_size();
    const std::int64_t begin = rows * model.data_parallel_rank();
    return rows_of(batch, begin, begin + rows);
}

struct TrainingCurve {
    std::vector<double> losses, norms;
};

// Steps first, first + 1, .. on two micro-batches of sequences (of all data-parallel ranks) and positions, the same
// in each, with clipping. Collective over the model's ranks.
inline TrainingCurve train_steps(LanguageModel& model,
                                 int first,
                                 int steps,
                                 std::int64_t sequences = 2,
                                 std::int64_t positions = 33) {
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, model.buckets().device());
    TrainingCurve curve;
    for (int step = first; step < first + steps; ++step) {
        std::vector<Batch> batches;
        for (int i = 0; i < 2; ++i) {
            batches.push_back(part_of(
                random_batch(sequences, positions, 32, static_cast<std::uint64_t>(i)), model));
        }
        compute_gradients(model, batches, numbers);
        adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers, step + 1);
        model.finish_update();
        const Tensor host = numbers.to(Device::kCpu);
        curve.losses.push_back(host.data<double>()[kLossIndex]);
        curve.norms.push_back(std::sqrt(host.data<double>()[kSquaredNormIndex]));
    }
    return curve;
}

// Twice the error that bf16 makes on the CPU is allowed, and at least one rounding of bf16: that error may be
// small by luck.
inline void expect_follows(const TrainingCurve& got,
                           const TrainingCurve& exact,
                           const TrainingCurve& rounded) {
    for (std::vector<double> TrainingCurve::*member :
         {&TrainingCurve::losses, &TrainingCurve::norms}) {
        const auto &g = got.*member, &e = exact.*member, &r = rounded.*member;
        double allowed = 0.0;
        for (std::size_t i = 0; i < e.size(); ++i) {
            allowed = std::max({allowed, 2.0 * std::abs(r[i] - e[i]), e[i] / 256.0});
        }
        for (std::size_t i = 0; i < e.size(); ++i) {
            EXPECT_NEAR(g[i], e[i], allowed)
                << (member == &TrainingCurve::losses ? "loss" : "gradient norm") << " of step "
                << i + 1 << "; bf16 on the CPU has " << r[i];
        }
    }
}

// Of models in fp32 on two devices, which differ in the order of sums. That changes a loss or norm by some
// roundings of 2^-24. AdamW's first step turns them into more: where a gradient is near 0 its sign, and with it
// a whole step of one weight, is a matter of them; so later steps have more room, and their norms most.
inline void expect_follows_in_fp32(const TrainingCurve& got, const TrainingCurve& want) {
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
        const double loss = i == 0 ? 1e-6 : 1e-4, norm = i == 0 ? 1e-5 : 1e-3;
        EXPECT_NEAR(got.losses[i], want.losses[i], loss * want.losses[i])
            << "loss of step " << i + 1;
        EXPECT_NEAR(got.norms[i], want.norms[i], norm * want.norms[i])
            << "gradient norm of step " << i + 1;
    }
    EXPECT_LT(got.losses.back(), got.losses.front());
}

}  // namespace evenkeel::testing
