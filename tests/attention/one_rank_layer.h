// A small attention layer on a grid of one rank, for the tests of the layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/tensor_parallel_attention.h"
#include "framework/parameter_buckets.h"
#include "framework/rng.h"
#include "tests/attention/attention_layer_reference.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {

inline constexpr std::int64_t kWidth = 48;  // C

inline AttentionConfig small_config(QkNormConfig::Kind kind = QkNormConfig::Kind::kRms,
                                    QkNormConfig::Gain gain = QkNormConfig::Gain::kPerHeadChannel) {
    AttentionConfig config;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.qk_norm.kind = kind;
    config.qk_norm.gain = gain;
    return config;
}

// A layer on a grid of one rank, with weights that give logits of about unit size, unequal gains and biases.
class OneRankLayer {
  public:
    explicit OneRankLayer(const AttentionConfig& config, DType type = DType::kFloat32)
        : world_(make_single_communicator()),
          grid_(*world_, {}),
          layer_(grid_, config, kWidth, type, "layers.0.attention") {
        layer_.collect_parameters(parameters_);
        buckets_ = ParameterBuckets(parameters_, Device::kCpu);
        layer_.initialize(1.0 / std::sqrt(double(kWidth)), 0.1, 1);
        for (Parameter* p : parameters_) {
            const std::string name = short_name(p->name);
            if (name != "q_gain" && name != "k_gain" && name != "sink" &&
                !name.ends_with("_bias")) {
                continue;
            }
            p->master.copy_from(gaussian(p->global_shape, DType::kFloat32, purpose(name.c_str()),
                                         name.ends_with("gain") ? config.qk_norm.gain_unit : 1.0));
        }
    }
    TensorParallelAttention* operator->() { return &layer_; }
    Parameter& parameter(const std::string& name) {
        for (Parameter* p : parameters_) {
            if (short_name(p->name) == name) return *p;
        }
        throw_error(ErrorCode::kInternal, "test", name);
    }
    const ParameterList& parameters() const { return parameters_; }
    void zero_gradients() { buckets_.zero_gradients(); }
    Tensor forward(const Tensor& x, AttentionStats* stats = nullptr) {
        AttentionSaved saved;
        return layer_.forward(x, {}, saved, stats);
    }
    // One token at a time, after a prompt of `prompt` tokens.
    Tensor decode(const Tensor& x, std::int64_t prompt) {
        KvCache cache = layer_.make_cache(x.size(0), x.size(1));
        const Tensor y = Tensor::uninitialized(x.shape(), x.dtype());
        for (std::int64_t begin = 0, end = prompt; begin < x.size(1); begin = end, ++end) {
            y.slice(1, begin, end)
                .copy_from(layer_.decode(x.slice(1, begin, end).contiguous(), cache));
        }
        return y;
    }

  private:
    std::unique_ptr<Communicator> world_;
    ProcessGrid grid_;
    TensorParallelAttention layer_;
    ParameterList parameters_;
    ParameterBuckets buckets_;
};

inline void scale(Parameter& parameter, float factor) {
    float* values = parameter.master.data<float>();
    for (std::int64_t i = 0; i < parameter.master.numel(); ++i) values[i] *= factor;
    parameter.refresh_value();
}

inline std::vector<float> values_of(const Tensor& tensor) {
    const auto values = to_doubles(tensor);
    return {values.begin(), values.end()};
}

inline double largest(const std::vector<double>& values) {
    double result = 0.0;
    for (const double value : values) result = std::max(result, std::abs(value));
    return result;
}

}  // namespace evenkeel::testing
