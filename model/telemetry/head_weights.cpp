#include "model/telemetry/head_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/gain.h"
#include "attention/logit_bound.h"
#include "model/cuda/head_statistics.h"
#include "model/telemetry/head_tables.h"

namespace evenkeel {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kParts = 8;  // of a head's rows, each summed by itself

void squares_on_cpu(const Tensor& weight, const Tensor& squares) {
    const std::int64_t parts = squares.numel(), length = weight.numel() / parts;
    const float* values = weight.data<float>();
#pragma omp parallel for
    for (std::int64_t part = 0; part < parts; ++part) {
        double sum = 0.0;
        for (std::int64_t i = part * length; i < (part + 1) * length; ++i) {
            sum += static_cast<double>(values[i]) * values[i];
        }
        squares.data<double>()[part] = sum;
    }
}

// One weight of all layers: sums of squares a head, [L, N, kParts] fp64 on the weights' device.
class Squares {
  public:
    Squares(std::int64_t layers, std::int64_t heads, Device device)
        : sums_(Tensor::uninitialized({layers, heads, kParts}, DType::kFloat64, device)) {}

    void add(std::int64_t layer, const Tensor& weight) {
        const Tensor of_layer =
            sums_.slice(0, layer, layer + 1).view({sums_.size(1), sums_.size(2)});
        switch (weight.device()) {
            case Device::kCpu:
                return squares_on_cpu(weight, of_layer);
            case Device::kCuda:
                return cuda::head_squares(weight, of_layer);
        }
    }

    // [1, L, N] fp32 on the CPU.
    Tensor norms() const {
        const Tensor sums = sums_.to(Device::kCpu);
        const Tensor norms =
            Tensor::uninitialized({1, sums.size(0), sums.size(1)}, DType::kFloat32);
        for (std::int64_t i = 0; i < norms.numel(); ++i) {
            const double* of_head = sums.data<double>() + i * kParts;
            double sum = 0.0;
            for (std::int64_t part = 0; part < kParts; ++part) sum += of_head[part];
            norms.data<float>()[i] = static_cast<float>(std::sqrt(sum));
        }
        return norms;
    }

  private:
    Tensor sums_;
};

// The smallest, the largest and the rms gain of each head: a layer of table [3, L, N].
void put_gains(const Tensor& gain, std::int64_t layer, const Tensor& table) {
    const std::int64_t layers = table.size(1), heads = table.size(2), channels = gain.size(-1);
    for (std::int64_t head = 0; head < heads; ++head) {
        const float* of_head = gain.data<float>() + (gain.rank() == 2 ? head * channels : 0);
        double sum = 0.0;
        for (std::int64_t c = 0; c < channels; ++c) {
            sum += static_cast<double>(of_head[c]) * of_head[c];
        }
        const auto [least, most] = std::minmax_element(of_head, of_head + channels);
        float* out = table.data<float>() + layer * heads + head;
        out[0] = *least;
        out[layers * heads] = *most;
        out[2 * layers * heads] =
            static_cast<float>(std::sqrt(sum / static_cast<double>(channels)));
    }
}

// What this rank has all of, closest to what the optimizer sees.
Tensor whole_of(const Parameter& parameter) {
    return parameter.is_cut() ? parameter.value.to(DType::kFloat32) : parameter.master;
}

// On the CPU; undefined without gains.
Tensor gains_of(const Parameter* gain, const AttentionConfig& attention, std::int64_t heads) {
    if (gain == nullptr || !gain->value.defined()) return {};
    return effective_gain(gain->value, attention.qk_norm, heads, attention.head_dim)
        .to(Device::kCpu)
        .contiguous();
}

}  // namespace

std::vector<MetricTable> head_weight_tables(const ProcessGrid& grid,
                                            const std::vector<AttentionConfig>& attention,
                                            const std::vector<LayerWeights>& layers,
                                            double lambda) {
    EVENKEEL_CHECK(attention.size() == layers.size() && !layers.empty(), "head_weight_tables",
                   "attention: got ", attention.size(), " settings, want one for each of ",
                   layers.size(), " layers");
    const auto count = static_cast<std::int64_t>(layers.size());
    const Parameter& wq = *layers.front().wq;
    const Parameter& wk = *layers.front().wk;
    const std::int64_t head_dim = attention.front().head_dim;
    const std::int64_t heads = wq.local_shape()[0] / head_dim;
    const std::int64_t kv_heads = wk.local_shape()[0] / head_dim;
    const int replicas = wk.sharding.replicas;

    Squares q_squares(count, heads, wq.value.device());
    Squares k_squares(count, kv_heads, wk.value.device());
    const Tensor q_gains = Tensor::full({3, count, heads}, kNone, DType::kFloat32);
    const Tensor k_gains = Tensor::full({3, count, kv_heads}, kNone, DType::kFloat32);
    const Tensor bounds = Tensor::uninitialized({1, count, heads}, DType::kFloat32);
    bool q_has_gains = false, k_has_gains = false, bounded = false;
    for (std::int64_t layer = 0; layer < count; ++layer) {
        const LayerWeights& weights = layers[static_cast<std::size_t>(layer)];
        const AttentionConfig& config = attention[static_cast<std::size_t>(layer)];
        q_squares.add(layer, whole_of(*weights.wq));
        k_squares.add(layer, whole_of(*weights.wk));
        const Tensor q_gain = gains_of(weights.q_gain, config, heads);
        const Tensor k_gain = gains_of(weights.k_gain, config, kv_heads);
        if (q_gain.defined()) put_gains(q_gain, layer, q_gains);
        if (k_gain.defined()) put_gains(k_gain, layer, k_gains);
        q_has_gains = q_has_gains || q_gain.defined();
        k_has_gains = k_has_gains || k_gain.defined();
        bounded = bounded || config.qk_norm.kind != QkNormKind::kNone || config.softcap > 0.0;
        AttentionConfig bounding = config;
        if (lambda < 1.0) bounding.qk_norm.kind = QkNormKind::kNone;
        const auto of_layer = logit_bounds(bounding, q_gain, k_gain, heads, kv_heads);
        for (std::int64_t head = 0; head < heads; ++head) {
            bounds.data<float>()[layer * heads + head] =
                static_cast<float>(of_layer[static_cast<std::size_t>(head)]);
        }
    }
    std::vector<MetricTable> tables;
    const auto put = [&](const std::vector<std::string>& names, const Tensor& local, int copies) {
        for (MetricTable& table : gather_heads(grid, names, local, copies)) {
            tables.push_back(std::move(table));
        }
    };
    if (q_has_gains) put({"q_gain_min", "q_gain_max", "q_gain_rms"}, q_gains, 1);
    if (k_has_gains) put({"k_gain_min", "k_gain_max", "k_gain_rms"}, k_gains, replicas);
    if (bounded) {
        put({"logit_bound"}, bounds, 1);
        tables.back().summary = MetricTable::Summary::kMax;
    }
    put({"wq_norm"}, q_squares.norms(), 1);
    put({"wk_norm"}, k_squares.norms(), replicas);
    if (layers.front().wq_bias != nullptr) {
        for (std::int64_t layer = 0; layer < count; ++layer) {
            q_squares.add(layer, whole_of(*layers[static_cast<std::size_t>(layer)].wq_bias));
            k_squares.add(layer, whole_of(*layers[static_cast<std::size_t>(layer)].wk_bias));
        }
        put({"wq_bias_norm"}, q_squares.norms(), 1);
        put({"wk_bias_norm"}, k_squares.norms(), replicas);
    }
    return tables;
}

}  // namespace evenkeel
