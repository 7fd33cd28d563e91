// evenkeel bench attention: norm, rotation and attention of one shape.
#include <array>
#include <utility>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "framework/storage/safetensors.h"
#include "launch/bench_call.h"

namespace evenkeel {
namespace {

// B batch, T positions, H query heads, K key/value heads, D head width.
class AttentionCall {
  public:
    explicit AttentionCall(const BenchAttentionCommand& size) : backward_(size.backward) {
        const DType type = to_dtype(size.type);
        const Shape query = {size.batch, size.tokens, size.heads, size.head_dim};
        const Shape key = {size.batch, size.tokens, size.kv_heads, size.head_dim};
        q_ = bench::random_tensor(query, type, "q");
        k_ = bench::random_tensor(key, type, "k");
        v_ = bench::random_tensor(key, type, "v");
        if (backward_) dout_ = bench::random_tensor(query, type, "dout");
        q_gain_ = Tensor::full({size.heads, size.head_dim}, 1.0f, DType::kFloat32);
        k_gain_ = Tensor::full({size.kv_heads, size.head_dim}, 1.0f, DType::kFloat32);
        rope_ = make_rope_table({}, size.head_dim, 0, size.tokens);
    }

    // Tensors q, k, v, dout, q_gain and k_gain, of the shapes that there are already.
    void read(const std::string& path) {
        const SafetensorsReader reader(path);
        const auto take = [&](const char* name, const Tensor& into) {
            EVENKEEL_CHECK_CODE(reader.info(name).shape == into.shape(), ErrorCode::kConfig,
                                "bench", path, ": tensor ", name,
                                ": its shape is not that of the options");
            reader.read(name, into);
        };
        take("q", q_), take("k", k_), take("v", v_);
        take("q_gain", q_gain_), take("k_gain", k_gain_);
        if (backward_) take("dout", dout_);
    }

    // All that a call makes is made in it, as in a layer.
    void run() {
        const std::int64_t B = q_.size(0), T = q_.size(1), H = q_.size(2), K = k_.size(2);
        const Tensor q = Tensor::uninitialized(q_.shape(), q_.dtype());
        const Tensor k = Tensor::uninitialized(k_.shape(), k_.dtype());
        const Tensor q_rstd = Tensor::uninitialized({B, T, H}, DType::kFloat32);
        const Tensor k_rstd = Tensor::uninitialized({B, T, K}, DType::kFloat32);
        const QkNormRopePart rows[] = {{q_, q_gain_, q, q_rstd}, {k_, k_gain_, k, k_rstd}};
        qk_norm_rope_forward(rows, rope_, {}, {});
        out_ = Tensor::uninitialized(q_.shape(), q_.dtype());
        const Tensor lse = Tensor::uninitialized({B, H, T}, DType::kFloat32);
        AttentionStats stats;
        flash_attention_forward(q, k, v_, {}, out_, lse, &stats);
        if (!backward_) return;
        dq_ = Tensor::uninitialized(q_.shape(), q_.dtype());
        dk_ = Tensor::uninitialized(k_.shape(), k_.dtype());
        dv_ = Tensor::uninitialized(v_.shape(), v_.dtype());
        flash_attention_backward(q, k, v_, out_, lse, dout_, {}, dq_, dk_, dv_);
        dq_gain_ = Tensor::zeros(q_gain_.shape(), DType::kFloat32);
        dk_gain_ = Tensor::zeros(k_gain_.shape(), DType::kFloat32);
        const QkNormRopeGradientPart gradients[] = {{dq_, q_, q_gain_, q_rstd, dq_, dq_gain_},
                                                    {dk_, k_, k_gain_, k_rstd, dk_, dk_gain_}};
        qk_norm_rope_backward(gradients, rope_, {}, {});
    }

    void write(const std::string& path) const {
        std::vector<std::pair<std::string, Tensor>> tensors = {{"out", out_}};
        if (backward_) {
            tensors.insert(tensors.end(), {{"dq", dq_},
                                           {"dk", dk_},
                                           {"dv", dv_},
                                           {"dq_gain", dq_gain_},
                                           {"dk_gain", dk_gain_}});
        }
        write_safetensors(path, tensors);
    }

  private:
    bool backward_;
    Tensor q_, k_, v_, dout_, q_gain_, k_gain_;
    RopeTable rope_;
    Tensor out_, dq_, dk_, dv_, dq_gain_, dk_gain_;
};

}  // namespace

void run_bench_attention(const BenchAttentionCommand& command, Communicator& world) {
    EVENKEEL_CHECK_CODE(world.size() == 1, ErrorCode::kConfig, "bench", "attention: got ",
                        world.size(), " ranks, want 1; start it without mpirun");
    {
        // Threads and what the libraries keep are no memory of the call.
        BenchAttentionCommand small = command;
        small.tokens = 64;
        AttentionCall(small).run();
    }
    bench::MemoryGrowth memory;
    AttentionCall attention(command);
    if (!command.inputs.empty()) attention.read(command.inputs);
    memory.forget_peak();
    bench::CallResult result;
    result.shape = concat("B=", command.batch, " T=", command.tokens, " H=", command.heads,
                          " K=", command.kv_heads, " D=", command.head_dim, ", ",
                          name_of(to_dtype(command.type)),
                          command.backward ? ", forward and backward" : ", forward");
    attention.run();
    const auto run = [&] { attention.run(); };
    result.seconds = command.calls > 0 ? bench::times_of(command.calls, run)
                                       : bench::times_within(command.seconds, run);
    result.peak_bytes = memory.peak_bytes();
    if (!command.outputs.empty()) attention.write(command.outputs);
    bench::print(result, command.json);
}

}  // namespace evenkeel
