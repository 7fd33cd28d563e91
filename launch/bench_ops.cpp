// Each operation of a training step against what the machine can do: products against oneDNN's, what moves bytes against a
// copy; and how much of the whole step they make up.
#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "framework/gemm.h"
#include "launch/bench_stepper.h"
#include "model/ops/elementwise.h"
#include "parallel/vocab.h"

namespace evenkeel::bench {
namespace {

constexpr DType kBf16 = DType::kBFloat16;

// One operation as often as a step does it. Of work there are operations or bytes; bytes are what has to be read and
// written once.
struct Op {
    std::string name;
    Body body;           // once
    double times = 1.0;  // a step
    double flops = 0.0, bytes = 0.0;
};

// A matrix of weights [out, in] and what its three products read and write. N rows.
struct Product {
    Tensor x, w, y, dx, dw;

    Product(std::int64_t rows, std::int64_t out, std::int64_t in)
        : x(random_tensor({rows, in}, kBf16, "x")),
          w(random_tensor({out, in}, kBf16, "w")),
          y(random_tensor({rows, out}, kBf16, "y")),
          dx(Tensor::uninitialized({rows, in}, kBf16)),
          dw(Tensor::zeros({out, in}, DType::kFloat32)) {}
    void forward() const { gemm(x, w, y, {.transpose_b = true}); }
    void of_inputs() const { gemm(y, w, dx); }
    void of_weights() const { gemm(y, x, dw, {.transpose_a = true, .accumulate = true}); }
    double flops() const { return 2.0 * static_cast<double>(x.numel() * w.size(0)); }
};

double bytes_of(std::initializer_list<Tensor> tensors) {
    double bytes = 0.0;
    for (const Tensor& x : tensors) bytes += static_cast<double>(x.bytes());
    return bytes;
}

// The products of one layer.
void add_products(const ModelConfig& c, double rows, std::vector<Op>& ops) {
    const AttentionConfig& a = c.attention;
    const auto n = static_cast<std::int64_t>(rows);
    const auto products = std::make_shared<std::vector<Product>>();
    products->emplace_back(n, (a.num_heads + 2 * a.num_kv_heads) * a.head_dim, c.width);
    products->emplace_back(n, c.width, a.num_heads * a.head_dim);
    products->emplace_back(n, 2 * c.feed_forward_width, c.width);
    products->emplace_back(n, c.width, c.feed_forward_width);
    double flops = 0.0;
    for (const Product& p : *products) flops += p.flops();
    const auto add = [&](const char* name, void (Product::*product)() const) {
        const Body body = [products, product] {
            for (const Product& p : *products) (p.*product)();
        };
        ops.push_back({name, body, static_cast<double>(c.num_layers), flops, 0.0});
    };
    add("products, forward", &Product::forward);
    add("products, gradients of inputs", &Product::of_inputs);
    add("products, gradients of weights", &Product::of_weights);
}

void add_attention(const ModelConfig& c,
                   std::int64_t batch,
                   std::int64_t tokens,
                   std::vector<Op>& ops) {
    const AttentionConfig& a = c.attention;
    const auto layers = static_cast<double>(c.num_layers);
    const Shape query = {batch, tokens, a.num_heads, a.head_dim};
    const Shape key = {batch, tokens, a.num_kv_heads, a.head_dim};
    const Tensor q = random_tensor(query, kBf16, "q"), k = random_tensor(key, kBf16, "k"),
                 v = random_tensor(key, kBf16, "v"), dout = random_tensor(query, kBf16, "dout");
    const Tensor out = Tensor::uninitialized(query, kBf16), dq = Tensor::zeros(query, kBf16);
    const Tensor dk = Tensor::zeros(key, kBf16), dv = Tensor::zeros(key, kBf16);
    const Tensor lse = Tensor::zeros({batch, a.num_heads, tokens}, DType::kFloat32);
    // Four operations a channel for each pair that the causal mask leaves; five products backward for forward's two.
    const double pairs =
        0.5 * static_cast<double>(batch * tokens) * static_cast<double>(tokens + 1);
    const double flops = 4.0 * static_cast<double>(a.num_heads * a.head_dim) * pairs;
    ops.push_back({"attention, forward",
                   [=] { flash_attention_forward(q, k, v, {}, out, lse, nullptr); }, layers, flops,
                   0.0});
    ops.push_back({"attention, backward",
                   [=] { flash_attention_backward(q, k, v, out, lse, dout, {}, dq, dk, dv); },
                   layers, 2.5 * flops, 0.0});

    const Tensor gain_q = Tensor::full({a.num_heads, a.head_dim}, 1.0f, DType::kFloat32);
    const Tensor gain_k = Tensor::full({a.num_kv_heads, a.head_dim}, 1.0f, DType::kFloat32);
    const Tensor dgain_q = Tensor::zeros(gain_q.shape(), DType::kFloat32);
    const Tensor dgain_k = Tensor::zeros(gain_k.shape(), DType::kFloat32);
    const Tensor rstd_q = Tensor::zeros({batch, tokens, a.num_heads}, DType::kFloat32);
    const Tensor rstd_k = Tensor::zeros({batch, tokens, a.num_kv_heads}, DType::kFloat32);
    const RopeTable rope = make_rope_table({}, a.head_dim, 0, tokens);
    ops.push_back({"QK-norm + RoPE, forward",
                   [=] {
                       qk_norm_rope_forward(q, gain_q, rope, {}, {}, dq, rstd_q);
                       qk_norm_rope_forward(k, gain_k, rope, {}, {}, dk, rstd_k);
                   },
                   layers, 0.0, bytes_of({q, dq, k, dk})});
    ops.push_back({"QK-norm + RoPE, backward",
                   [=] {
                       qk_norm_rope_backward(dout, q, gain_q, rstd_q, rope, {}, {}, dq, dgain_q);
                       qk_norm_rope_backward(v, k, gain_k, rstd_k, rope, {}, {}, dk, dgain_k);
                   },
                   layers, 0.0, bytes_of({dout, q, dq, v, k, dk})});
}

void add_elementwise(const ModelConfig& c, std::int64_t rows, std::vector<Op>& ops) {
    const auto layers = static_cast<double>(c.num_layers);
    const Tensor x = random_tensor({rows, c.width}, kBf16, "x"),
                 dy = random_tensor({rows, c.width}, kBf16, "dy");
    const Tensor y = Tensor::zeros({rows, c.width}, kBf16);
    const Tensor gain = Tensor::full({c.width}, 1.0f, DType::kFloat32);
    const Tensor dgain = Tensor::zeros({c.width}, DType::kFloat32);
    const Tensor rstd = Tensor::zeros({rows}, DType::kFloat32);
    ops.push_back({"RMSNorm, forward", [=] { rms_norm_forward(x, gain, 1e-6, y, rstd); },
                   2.0 * layers + 1.0, 0.0, bytes_of({x, y})});
    ops.push_back({"RMSNorm, backward, added to dx",
                   [=] { rms_norm_backward(dy, x, gain, rstd, true, y, dgain); },
                   2.0 * layers + 1.0, 0.0, bytes_of({dy, x, y, y})});
    ops.push_back(
        {"residual sum", [=] { add_in_place(y, x); }, 2.0 * layers, 0.0, bytes_of({y, y, x})});
    const Tensor gate_up = random_tensor({rows, 2 * c.feed_forward_width}, kBf16, "gate");
    const Tensor dgate_up = Tensor::zeros(gate_up.shape(), kBf16);
    const Tensor hidden = random_tensor({rows, c.feed_forward_width}, kBf16, "hidden");
    ops.push_back({"SwiGLU, forward", [=] { swiglu_forward(gate_up, hidden); }, layers, 0.0,
                   bytes_of({gate_up, hidden})});
    ops.push_back({"SwiGLU, backward", [=] { swiglu_backward(hidden, gate_up, dgate_up); }, layers,
                   0.0, bytes_of({hidden, gate_up, dgate_up})});
}

void add_update(Stepper& stepper, std::vector<Op>& ops) {
    std::int64_t parameters = 0;
    for (const Parameter* parameter : stepper.model().parameters()) {
        parameters += parameter->value.numel();
    }
    // Master, both moments read and written; the gradient read, the value written.
    constexpr double kBytes = 3 * 2 * 4 + 4 + 2;
    ops.push_back({"AdamW", [&stepper] { stepper.update(); }, 1.0, 0.0,
                   kBytes * static_cast<double>(parameters)});
}

}  // namespace

Lines measure_ops(const StepBench& size) {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    const ModelConfig config = model_of(size);
    Stepper stepper(grid, size, config);
    const std::int64_t rows = size.batch * size.tokens;
    std::vector<Op> ops;
    add_products(config, static_cast<double>(rows), ops);
    add_attention(config, size.batch, size.tokens, ops);
    add_elementwise(config, rows, ops);
    add_update(stepper, ops);

    const YardstickGemm yardstick(true);
    // As many bytes as the largest of these tensors: a copy of fewer might stay in a cache.
    const Shape copied = {rows, 2 * config.feed_forward_width};
    const Tensor from = random_tensor(copied, kBf16, "from"), to = Tensor::zeros(copied, kBf16);
    std::vector<Body> bodies = {[&] { stepper.step(); }, [&] { yardstick.run(); },
                                [&] { copy_bytes(from, to); }};
    const std::size_t first = bodies.size();
    for (const Op& op : ops) bodies.push_back(op.body);
    const Times times = time_in_turn("ops", bodies, size.rounds, 0.03);

    const auto of_step = [&](std::size_t i, double count) {
        return share_of_rounds(ratios_of(times[i], times[0]), "of the step", 0.0, false, count);
    };
    Lines lines = {{name_of(size, "whole step"), 1e3 * median(times[0]), "ms", {}}};
    std::vector<double> explained(times[0].size(), 0.0);
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const Op& op = ops[i];
        const std::vector<double>& own = times[first + i];
        Line line{"  " + op.name, 1e3 * op.times * median(own), "ms", {}};
        line.shares.push_back(of_step(first + i, op.times));
        if (op.flops > 0.0) {
            line.shares.push_back(share_of_rounds(ratios_of(times[1], own), "of bf16 GEMM", 0.0,
                                                  false, op.flops / yardstick.flops()));
        } else {
            line.shares.push_back(share_of_rounds(ratios_of(times[2], own), "of the copy", 0.0,
                                                  false, op.bytes / (2.0 * from.bytes())));
        }
        for (std::size_t r = 0; r < own.size(); ++r) explained[r] += op.times * own[r];
        lines.push_back(line);
    }
    lines.push_back({"  all of these",
                     1e3 * median(explained),
                     "ms",
                     {share_of_rounds(ratios_of(explained, times[0]), "of the step")}});
    return lines;
}

}  // namespace evenkeel::bench
