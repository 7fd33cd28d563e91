// What telemetry and QK-norm cost a training step. Each is a fraction of a percent, far below what
// two whole steps differ by on a busy machine, so it is measured where it arises: the one operation
// with and without it, in pairs that follow one another at once, the order alternating. The median
// of the pairs' differences, times the number of layers, is set against the faster of two steps.
// All of it runs on one thread and is timed by that thread's processor time: that clock stops while
// other programs run, and no thread waits for another one.
#include <omp.h>
#include <time.h>

#include <algorithm>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "launch/bench.h"

namespace evenkeel::bench {
namespace {

constexpr int kPairs = 200;  // even: each order as often as the other

double seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double processor_seconds(const Body& body) {
    const double start = seconds();
    body();
    return seconds() - start;
}

// Median over pairs of the seconds by which `with` takes longer than `without`.
double median_difference(const Body& with, const Body& without) {
    with();
    without();
    std::vector<double> differences;
    for (int pair = 0; pair < kPairs; ++pair) {
        const bool with_first = pair % 2 == 0;
        const double first = processor_seconds(with_first ? with : without);
        const double second = processor_seconds(with_first ? without : with);
        differences.push_back(with_first ? first - second : second - first);
    }
    return median(differences);
}

// One layer's queries and keys as the layer holds them: before the norm in a packed tensor with the
// values, after it in tensors of their own.
struct Layer {
    Tensor qkv, dqkv, q, k, out, lse, dq, dk;

    Layer(const AttentionConfig& c, std::int64_t batch, std::int64_t tokens)
        : heads_(c.num_heads), kv_heads_(c.num_kv_heads) {
        const Shape query = {batch, tokens, c.num_heads, c.head_dim};
        const Shape key = {batch, tokens, c.num_kv_heads, c.head_dim};
        const Shape packed = {batch, tokens, c.num_heads + 2 * c.num_kv_heads, c.head_dim};
        qkv = random_tensor(packed, DType::kBFloat16, "qkv");
        dqkv = Tensor::zeros(packed, DType::kBFloat16);
        q = random_tensor(query, DType::kBFloat16, "q"),
        k = random_tensor(key, DType::kBFloat16, "k");
        dq = q.clone(), dk = k.clone();
        out = Tensor::zeros(query, DType::kBFloat16);
        lse = Tensor::zeros({batch, c.num_heads, tokens}, DType::kFloat32);
    }
    // Part 0, 1 or 2: q, k or v.
    Tensor part(const Tensor& packed, int i) const {
        const std::int64_t begin = i == 0 ? 0 : heads_ + (i - 1) * kv_heads_;
        return packed.slice(2, begin, i == 0 ? heads_ : begin + kv_heads_);
    }

  private:
    std::int64_t heads_, kv_heads_;
};

double telemetry_seconds(const Layer& layer) {
    const Tensor v = layer.part(layer.qkv, 2);
    AttentionStats stats;
    const auto forward = [&](AttentionStats* wanted) {
        flash_attention_forward(layer.q, layer.k, v, {}, layer.out, layer.lse, wanted);
    };
    return median_difference([&] { forward(&stats); }, [&] { forward(nullptr); });
}

// Forward and backward, norm and rotation against rotation alone (which works in place, as in the
// layer).
double norm_seconds(const Layer& layer, const AttentionConfig& c) {
    const std::int64_t B = layer.q.size(0), T = layer.q.size(1), D = c.head_dim;
    const RopeTable rope = make_rope_table(c.rope, D, 0, T);
    const Tensor x[] = {layer.part(layer.qkv, 0), layer.part(layer.qkv, 1)};
    const Tensor dx[] = {layer.part(layer.dqkv, 0), layer.part(layer.dqkv, 1)};
    const Tensor y[] = {layer.q, layer.k}, dy[] = {layer.dq, layer.dk};
    std::vector<QkNormRopePart> normed, turned;
    std::vector<QkNormRopeGradientPart> normed_gradients, turned_gradients;
    for (int i = 0; i < 2; ++i) {
        const std::int64_t heads = x[i].size(2);
        const Tensor gain = Tensor::full({heads, D}, 1.0f, DType::kFloat32);
        const Tensor dgain = Tensor::zeros({heads, D}, DType::kFloat32);
        const Tensor rstd = Tensor::zeros({B, T, heads}, DType::kFloat32);
        normed.push_back({x[i], gain, y[i], rstd});
        turned.push_back({x[i], {}, x[i], {}});
        normed_gradients.push_back({dy[i], x[i], gain, rstd, dx[i], dgain});
        turned_gradients.push_back({dy[i], x[i], {}, {}, dx[i], {}});
    }
    QkNormRopeOptions norm, plain;
    plain.norm = QkNormKind::kNone;
    return median_difference(
        [&] {
            qk_norm_rope_forward(normed, rope, {}, norm);
            qk_norm_rope_backward(normed_gradients, rope, {}, norm);
        },
        [&] {
            qk_norm_rope_forward(turned, rope, {}, plain);
            qk_norm_rope_backward(turned_gradients, rope, {}, plain);
        });
}

}  // namespace

Lines measure_costs(const ModelConfig& config,
                    std::int64_t batch,
                    std::int64_t tokens,
                    const Body& step) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const Layer layer(config.attention, batch, tokens);
    const auto layers = static_cast<double>(config.num_layers);
    const double telemetry = layers * telemetry_seconds(layer);
    const double norm = layers * norm_seconds(layer, config.attention);
    const double fastest = std::min(processor_seconds(step), processor_seconds(step));
    omp_set_num_threads(threads);
    return {{"a step, processor time of one thread", 1e3 * fastest, "ms", {}},
            {concat("telemetry, attention with - without, x ", layers),
             1e3 * telemetry,
             "ms",
             {{telemetry / fastest, "of that step", 0.02, true}}},
            {concat("QK-norm, norm+rope - rope alone, x ", layers),
             1e3 * norm,
             "ms",
             {{norm / fastest, "of that step", 0.03, true}}}};
}

}  // namespace evenkeel::bench
