// Models small enough to test whole.
#pragma once

#include <algorithm>
#include <memory>

#include "framework/rng.h"
#include "model/language_model.h"
#include "parallel/process_grid.h"

namespace evenkeel::testing {

// A process by itself.
struct SoloGrid {
    std::unique_ptr<Communicator> world = make_single_communicator();
    ProcessGrid grid;

    explicit SoloGrid(Device device = Device::kCpu)
        : grid(*world, ParallelConfig{.tensor_parallel = 1, .data_parallel = 1}, device) {}
};

// Two layers of grouped-query attention in fp32, with weights large enough that every part matters.
inline ModelConfig tiny_model() {
    ModelConfig config;
    config.vocab_size = 32;
    config.num_layers = 2;
    config.width = 32;
    config.feed_forward_width = 48;
    config.max_seq_len = 64;
    config.init_std = 0.2;
    config.embedding_init_std = 0.2;
    config.type = ComputeType::kFp32;
    config.attention.num_heads = 4;
    config.attention.num_kv_heads = 2;
    config.attention.head_dim = 32;
    return config;
}

// What other families of models have, by name.
struct FamilyTraits {
    const char* name;
    void (*apply)(ModelConfig&);
};
inline constexpr FamilyTraits kFamilyTraits[] = {
    {"PostNorm",  // OLMo 2
     [](ModelConfig& c) {
         c.architecture = Architecture::kPostNorm;
         c.embedding_init_std = 1.0;
     }},
    {"SandwichNorm",  // Gemma 3
     [](ModelConfig& c) {
         c.architecture = Architecture::kSandwichNorm;
         c.norm.gain_offset = 1.0;
         c.activation = Activation::kGeGlu;
         c.tied_embeddings = true;
         c.init_std = 0.1;
         c.embedding_scale = 8.0;
         c.attention.window = 5;
         c.global_interval = 2;
         c.local_rope_theta = 100.0;
     }},
    {"Parallel",  // Command R
     [](ModelConfig& c) {
         c.architecture = Architecture::kParallel;
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.tied_embeddings = true;
         c.logit_scale = 0.5;
     }},
    {"LayerNormWithBias",  // StableLM 2
     [](ModelConfig& c) {
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.norm.bias = true;
         c.attention.rope.rotary_fraction = 0.25;
     }},
    {"NormInOneLayer",
     [](ModelConfig& c) {
         c.qk_norm_layers = "1";
         c.init_std = 0.1;
     }},
};

inline Batch random_batch(std::int64_t batch,
                          std::int64_t length,
                          std::int64_t vocab_size,
                          std::uint64_t seed) {
    const CounterRng rng(seed, purpose("test tokens"));
    Batch result{Tensor::uninitialized({batch, length}, DType::kInt32),
                 Tensor::uninitialized({batch, length}, DType::kInt32)};
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t t = 0; t <= length; ++t) {
            const auto token =
                static_cast<std::int32_t>(rng.below(b * (length + 1) + t, vocab_size));
            if (t < length) result.tokens.data<std::int32_t>()[b * length + t] = token;
            if (t > 0) result.targets.data<std::int32_t>()[b * length + t - 1] = token;
        }
    }
    return result;
}

// Cuts each row into up to three documents, somewhere.
inline void pack_documents(Batch& batch, std::uint64_t seed) {
    const CounterRng rng(seed, purpose("test documents"));
    const std::int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
    batch.cu_seqlens.clear();
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t a = rng.below(2 * row, length), b = rng.below(2 * row + 1, length);
        std::int64_t last = -1;
        for (const std::int64_t at : {std::int64_t{0}, std::min(a, b), std::max(a, b)}) {
            if (at > last) batch.cu_seqlens.push_back(static_cast<std::int32_t>(row * length + at));
            last = std::max(last, at);
        }
    }
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(rows * length));
    for (std::size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
        batch.targets.data<std::int32_t>()[batch.cu_seqlens[i] - 1] = Batch::kNoTarget;
    }
}

// Rows [begin, end) of a batch, with their documents.
inline Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t end) {
    const std::int64_t length = batch.tokens.size(1);
    Batch part{
        batch.tokens.slice(0, begin, end).clone(), batch.targets.slice(0, begin, end).clone(), {}};
    for (const std::int32_t bound : batch.cu_seqlens) {
        const std::int64_t at = bound - begin * length;
        if (at >= 0 && at <= (end - begin) * length) {
            part.cu_seqlens.push_back(static_cast<std::int32_t>(at));
        }
    }
    return part;
}

// Adds to the model's gradients, not reduced over data-parallel ranks; returns the unscaled mean loss.
inline double forward_backward(TrainableModel& model, const Batch& batch, double loss_scale = 1.0) {
    const Tensor loss = Tensor::zeros({1}, DType::kFloat64, model.buckets().device());
    model.forward_backward(batch, loss_scale, false, loss);
    return loss.to(Device::kCpu).data<double>()[0] / loss_scale;
}

inline Parameter& find(TrainableModel& model, const std::string& name) {
    for (Parameter* parameter : model.parameters()) {
        if (parameter->name == name) return *parameter;
    }
    throw_error(ErrorCode::kInvalidArgument, "find", "no parameter " + name);
}

// Gains that are not all one, and biases that are not all zero, so that a test sees them.
inline void randomize_gains(TrainableModel& model) {
    for (Parameter* parameter : model.parameters()) {
        if (parameter->name.ends_with("bias")) {
            init_normal(*parameter, 0.3, 3);
            continue;
        }
        if (!parameter->trained || (parameter->name.find("norm") == std::string::npos &&
                                    parameter->name.find("gain") == std::string::npos)) {
            continue;
        }
        init_normal(*parameter, 0.3, 3);
        const Tensor shifted = parameter->value.clone();  // whole, also where masters are cut
        for (std::int64_t i = 0; i < shifted.numel(); ++i) shifted.data<float>()[i] += 1.0f;
        parameter->assign(shifted);
    }
}

}  // namespace evenkeel::testing
