// The memory that steps of training take.
#pragma once

#include <vector>

#include "framework/buffer.h"
#include "framework/optimizer/adamw.h"
#include "model/memory_plan.h"
#include "tests/support/tiny_model.h"

namespace evenkeel::testing {

// The peak over the passes of two steps of a new model, beyond what was held before. Over data-parallel ranks the steps
// are whole, with sums of gradients and updates.
inline std::size_t measured_peak(const ProcessGrid& grid,
                                 const ModelConfig& config,
                                 const StepShape& shape) {
    const std::size_t before = Buffer::live_bytes(grid.device());
    LanguageModel model(grid, config, 1);
    Buffer::reset_peak(grid.device());
    const Tensor loss = Tensor::zeros({1}, DType::kFloat64, grid.device());
    for (int step = 0; step < 2; ++step) {
        std::vector<Batch> batches;
        for (std::int64_t i = 0; i < shape.micro_batches; ++i) {
            batches.push_back(random_batch(shape.micro_batch_size, shape.seq_len, config.vocab_size,
                                           static_cast<std::uint64_t>(i)));
            if (shape.packed) pack_documents(batches.back(), static_cast<std::uint64_t>(i));
        }
        if (shape.data_parallel == 1) {
            for (const Batch& batch : batches) model.forward_backward(batch, 1.0, false, loss);
        } else {
            const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, grid.device());
            compute_gradients(model, batches, numbers);
            adamw_step(model.buckets(), {}, 1e-3, 1.0, numbers, step + 1);
            model.finish_update();
        }
    }
    return Buffer::peak_bytes(grid.device()) - before;
}

// A model for which no part of the plan is too small to be seen, at 256 positions.
inline ModelConfig planned_model() {
    ModelConfig config = tiny_model();
    config.vocab_size = 256;
    config.width = 64;
    config.feed_forward_width = 160;
    config.max_seq_len = 256;
    config.type = ComputeType::kBf16;
    return config;
}

// The same in what the kernels for GPUs take, for 64 positions.
inline ModelConfig planned_gpu_model(Activation activation) {
    ModelConfig config = planned_model();
    config.width = 64;
    config.feed_forward_width = 96;
    config.activation = activation;
    config.vocab_size = 64;
    config.attention.num_heads = 2;
    config.attention.num_kv_heads = 1;
    config.attention.head_dim = 64;
    return config;
}

}  // namespace evenkeel::testing
