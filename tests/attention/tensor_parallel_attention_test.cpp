// The layer on one rank; tests/distributed/ runs it on several.
#include "attention/tensor_parallel_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/attention/attention_layer_reference.h"
#include "tests/attention/one_rank_layer.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::attention_layer;
using testing::gaussian;
using testing::kWidth;
using testing::largest;
using testing::LayerCase;
using testing::near;
using testing::OneRankLayer;
using testing::same_bits;
using testing::short_name;
using testing::small_config;
using testing::to_doubles;

using Kind = QkNormConfig::Kind;
using Gain = QkNormConfig::Gain;
using Scope = QkNormConfig::Scope;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

struct Variant {
    const char* name;
    std::function<void(AttentionConfig&)> change;
};

std::vector<Variant> variants() {
    return {
        {"per_head_gains", [](AttentionConfig&) {}},
        {"shared_gains", [](AttentionConfig& c) { c.qk_norm.gain = Gain::kSharedChannel; }},
        {"plain", [](AttentionConfig& c) { c.qk_norm.kind = Kind::kNone; }},
        {"zero_centred_gains", [](AttentionConfig& c) { c.qk_norm.gain_offset = 1.0; }},
        {"gains_in_another_unit", [](AttentionConfig& c) { c.qk_norm.gain_unit = 0.125; }},
        {"no_gains", [](AttentionConfig& c) { c.qk_norm.gain = Gain::kNone; }},
        {"factor_per_head", [](AttentionConfig& c) { c.qk_norm.gain = Gain::kPerHeadScalar; }},
        {"layer_norm", [](AttentionConfig& c) { c.qk_norm.kind = Kind::kLayerNorm; }},
        {"full_width", [](AttentionConfig& c) { c.qk_norm.scope = Scope::kFullWidth; }},
        {"full_width_shared_gains",
         [](AttentionConfig& c) {
             c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.gain = Gain::kSharedChannel;
         }},
        {"full_width_no_gains",
         [](AttentionConfig& c) {
             c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.gain = Gain::kNone;
         }},
        {"henry",
         [](AttentionConfig& c) {
             c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kPerHeadScalar;
         }},
        {"henry_module",
         [](AttentionConfig& c) { c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kScalar; }},
        {"cosine",
         [](AttentionConfig& c) {
             c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kPerHeadScalar;
             c.qk_norm.gain_form = QkNormConfig::GainForm::kExponential;
         }},
        {"softcap", [](AttentionConfig& c) { c.qk_norm.kind = Kind::kNone, c.softcap = 2.0; }},
        {"sink", [](AttentionConfig& c) { c.sink = AttentionConfig::Sink::kLearned; }},
        {"off_by_one", [](AttentionConfig& c) { c.sink = AttentionConfig::Sink::kOffByOne; }},
        {"all_at_once",
         [](AttentionConfig& c) {
             c.qk_norm.scope = Scope::kFullWidth, c.softcap = 2.0, c.qk_norm.gain_offset = 1.0;
             c.sink = AttentionConfig::Sink::kLearned;
         }},
        {"biases", [](AttentionConfig& c) { c.qkv_bias = c.output_bias = true; }},
        {"biases_without_norm",
         [](AttentionConfig& c) {
             c.qk_norm.kind = Kind::kNone, c.qkv_bias = c.output_bias = true;
         }},
        {"biases_full_width",
         [](AttentionConfig& c) { c.qk_norm.scope = Scope::kFullWidth, c.qkv_bias = true; }},
        {"output_bias", [](AttentionConfig& c) { c.output_bias = true; }},
        {"multi_query", [](AttentionConfig& c) { c.num_kv_heads = 1; }},
        {"one_key_head_a_query_head", [](AttentionConfig& c) { c.num_kv_heads = 4; }},
        {"window", [](AttentionConfig& c) { c.window = 7; }},
        {"bidirectional", [](AttentionConfig& c) { c.causal = false; }},
        {"scaled", [](AttentionConfig& c) { c.softmax_scale = 0.5; }},
        {"partial_interleaved",
         [](AttentionConfig& c) {
             c.rope.rotary_fraction = 0.75;
             c.rope.layout = RopeLayout::kInterleaved;
         }},
        {"no_rotation", [](AttentionConfig& c) { c.rope.rotary_fraction = 0.0; }},
        {"yarn",
         [](AttentionConfig& c) {
             c.rope.scaling = RopeConfig::Scaling::kYarn;
             c.rope.factor = 4.0;
             c.rope.original_max_position = 64;
         }},
    };
}

class AttentionLayerVariants : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(All,
                         AttentionLayerVariants,
                         ::testing::ValuesIn(variants()),
                         [](const auto& info) { return std::string(info.param.name); });

// y, dx and every parameter's gradient, against double from the same (rounded) inputs. The bounds are
// relative to each tensor's largest element.
TEST_P(AttentionLayerVariants, MatchesReference) {
    AttentionConfig config = small_config();
    GetParam().change(config);
    for (const DType type : {kFp32, kBf16}) {
        const double tolerance = type == kFp32 ? 1e-5 : 0.03;
        for (const std::int64_t tokens : {1, 31, 33}) {
            SCOPED_TRACE(concat(name_of(type), ", T = ", tokens));
            OneRankLayer layer(config, type);
            LayerCase c{config, 2, tokens, kWidth, {}, {}};
            for (const Parameter* p : layer.parameters()) {
                c.parameters[short_name(p->name)] = to_doubles(p->value);
            }
            const Tensor x = gaussian({2, tokens, kWidth}, type, 1);
            const Tensor dy = gaussian({2, tokens, kWidth}, type, 2);
            AttentionSaved saved;
            const Tensor y = layer->forward(x, {}, saved, nullptr);
            const Tensor dx = layer->backward(dy, {}, saved);
            EXPECT_EQ(y.dtype(), type);
            EXPECT_EQ(dx.dtype(), type);

            const auto want = attention_layer(c, to_doubles(x), to_doubles(dy));
            EXPECT_TRUE(near(y, want.y, 0.0, tolerance * largest(want.y)));
            EXPECT_TRUE(near(dx, want.dx, 0.0, tolerance * largest(want.dx)));
            for (const Parameter* p : layer.parameters()) {
                const auto& gradient = want.gradients.at(short_name(p->name));
                // With one key, logits do not matter and their gradients are zero up to rounding.
                const double floor = tokens == 1 ? 0.1 : 0.0;
                EXPECT_TRUE(near(p->grad, gradient, 0.0, tolerance * (largest(gradient) + floor)))
                    << p->name;
            }
        }
    }
}

TEST_P(AttentionLayerVariants, DecodingEqualsTheForwardPass) {
    AttentionConfig config = small_config();
    GetParam().change(config);
    if (!config.causal) {
        OneRankLayer layer(config);
        EXPECT_THROW(layer.decode(gaussian({1, 2, kWidth}, kFp32, 1), 1), Error);
        return;
    }
    for (const DType type : {kFp32, kBf16}) {
        OneRankLayer layer(config, type);
        const Tensor x = gaussian({2, 40, kWidth}, type, 1);
        const Tensor want = layer.forward(x);
        const double allowed = (type == kFp32 ? 1e-5 : 0.02) * largest(to_doubles(want));
        for (const std::int64_t prompt : {1, 17, 40}) {
            EXPECT_TRUE(near(layer.decode(x, prompt), want, 0.0, allowed))
                << name_of(type) << ", prompt of " << prompt;
        }
    }
}

TEST(TensorParallelAttentionTest, ReferenceGradientsMatchFiniteDifferences) {
    LayerCase c{small_config(), 1, 5, 6, {}, {}};
    c.parameters["wq"] = to_doubles(gaussian({128, 6}, kFp32, 1));
    c.parameters["wk"] = to_doubles(gaussian({64, 6}, kFp32, 2));
    c.parameters["wv"] = to_doubles(gaussian({64, 6}, kFp32, 3));
    c.parameters["wo"] = to_doubles(gaussian({6, 128}, kFp32, 4));
    c.parameters["wq_bias"] = to_doubles(gaussian({128}, kFp32, 9));
    c.parameters["wk_bias"] = to_doubles(gaussian({64}, kFp32, 10));
    c.parameters["wv_bias"] = to_doubles(gaussian({64}, kFp32, 11));
    c.parameters["wo_bias"] = to_doubles(gaussian({6}, kFp32, 12));
    c.parameters["q_gain"] = to_doubles(gaussian({4, 32}, kFp32, 5));
    c.parameters["k_gain"] = to_doubles(gaussian({2, 32}, kFp32, 6));
    auto x = to_doubles(gaussian({1, 5, 6}, kFp32, 7));
    const auto dy = to_doubles(gaussian({1, 5, 6}, kFp32, 8));
    const auto got = attention_layer(c, x, dy);
    const auto difference = [&](double& value) {
        const double kept = value, step = 1e-5;
        double side[2];
        for (int s = 0; s < 2; ++s) {
            value = kept + (s == 0 ? step : -step);
            const auto y = attention_layer(c, x, dy).y;
            side[s] = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) side[s] += y[i] * dy[i];
        }
        value = kept;
        return (side[0] - side[1]) / (2.0 * step);
    };
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got.dx[i], difference(x[i]), 1e-6) << i;
    for (auto& [name, values] : c.parameters) {
        for (std::size_t i = 0; i < values.size(); i += 17) {
            EXPECT_NEAR(got.gradients.at(name)[i], difference(values[i]), 1e-6) << name << " " << i;
        }
    }
}

TEST(TensorParallelAttentionTest, PackedDocumentsEqualSeparateOnes) {
    OneRankLayer layer(small_config());
    const Tensor x = gaussian({1, 30, kWidth}, kFp32, 1), dy = gaussian({1, 30, kWidth}, kFp32, 2);
    SequenceLayout layout;
    layout.cu_seqlens = {0, 11, 12, 30};
    layout.positions = Tensor::uninitialized({1, 30}, DType::kInt32);
    for (int t = 0; t < 30; ++t) {
        layout.positions.data<std::int32_t>()[t] = t < 11 ? t : t < 12 ? 0 : t - 12;
    }
    AttentionSaved saved;
    const Tensor y = layer->forward(x, layout, saved, nullptr);
    const Tensor dx = layer->backward(dy, layout, saved);
    std::vector<Tensor> gradients;
    for (Parameter* p : layer.parameters()) gradients.push_back(p->grad.clone());
    layer.zero_gradients();
    for (int d = 0; d < 3; ++d) {
        const std::int64_t begin = layout.cu_seqlens[d], end = layout.cu_seqlens[d + 1];
        AttentionSaved own;
        const Tensor part = layer->forward(x.slice(1, begin, end), {}, own, nullptr);
        EXPECT_TRUE(near(y.slice(1, begin, end), part, 1e-5, 1e-6)) << "document " << d;
        EXPECT_TRUE(near(dx.slice(1, begin, end), layer->backward(dy.slice(1, begin, end), {}, own),
                         1e-5, 1e-5))
            << "document " << d;
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_TRUE(near(layer.parameters()[i]->grad, gradients[i], 1e-5, 1e-5))
            << layer.parameters()[i]->name;
    }
}

TEST(TensorParallelAttentionTest, TwoRunsAreTheSameBits) {
    for (const DType type : {kFp32, kBf16}) {
        const Tensor x = gaussian({2, 65, kWidth}, type, 1),
                     dy = gaussian({2, 65, kWidth}, type, 2);
        OneRankLayer a(small_config(), type), b(small_config(), type);
        AttentionSaved saved_a, saved_b;
        EXPECT_TRUE(
            same_bits(a->forward(x, {}, saved_a, nullptr), b->forward(x, {}, saved_b, nullptr)));
        EXPECT_TRUE(same_bits(a->backward(dy, {}, saved_a), b->backward(dy, {}, saved_b)));
        for (std::size_t i = 0; i < a.parameters().size(); ++i) {
            EXPECT_TRUE(same_bits(a.parameters()[i]->grad, b.parameters()[i]->grad))
                << a.parameters()[i]->name;
        }
    }
}

TEST(TensorParallelAttentionTest, GradientsAreAddedUp) {
    OneRankLayer layer(small_config());
    const Tensor x = gaussian({1, 12, kWidth}, kFp32, 1), dy = gaussian({1, 12, kWidth}, kFp32, 2);
    AttentionSaved saved;
    layer->forward(x, {}, saved, nullptr);
    layer->backward(dy, {}, saved);
    std::vector<std::vector<double>> twice;
    for (Parameter* p : layer.parameters()) {
        twice.push_back(to_doubles(p->grad));
        for (double& value : twice.back()) value *= 2.0;
    }
    layer->backward(dy, {}, saved);
    for (std::size_t i = 0; i < twice.size(); ++i) {
        EXPECT_TRUE(near(layer.parameters()[i]->grad, twice[i], 1e-5, 1e-6));
    }
}

TEST(TensorParallelAttentionTest, ParametersDeclareWhatTheyAre) {
    AttentionConfig config = small_config();
    config.qk_norm.gain_init = 1.5;
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    TensorParallelAttention layer(grid, config, kWidth, kBf16, "a");
    ParameterList list;
    layer.collect_parameters(list);
    const ParameterBuckets memory(list, Device::kCpu);
    layer.initialize(0.02, 0.01, 1);
    ASSERT_EQ(list.size(), 6u);
    const char* names[] = {"a.wq", "a.wk", "a.wv", "a.wo", "a.q_gain", "a.k_gain"};
    for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(list[i]->name, names[i]);
        EXPECT_EQ(list[i]->weight_decay, i < 4);
        EXPECT_EQ(list[i]->value.dtype(), i < 4 ? kBf16 : kFp32);
        EXPECT_EQ(list[i]->gradient_sum, GradientSum::kNone);
    }
    EXPECT_EQ(list[4]->global_shape, (Shape{4, 32}));
    EXPECT_EQ(list[5]->global_shape, (Shape{2, 32}));
    EXPECT_EQ(list[4]->value.data<float>()[77], 1.5f);

    config.qk_norm.gain_weight_decay = true;
    config.qk_norm.gain = Gain::kSharedChannel;
    TensorParallelAttention shared(grid, config, kWidth, kBf16, "b");
    list.clear();
    shared.collect_parameters(list);
    EXPECT_EQ(list[5]->global_shape, (Shape{32}));
    EXPECT_EQ(list[5]->gradient_sum, GradientSum::kTensorParallel);
    EXPECT_TRUE(list[5]->weight_decay);

    config.qk_norm.kind = Kind::kNone;
    TensorParallelAttention plain(grid, config, kWidth, kBf16, "c");
    list.clear();
    plain.collect_parameters(list);
    EXPECT_EQ(list.size(), 4u);
}

TEST(TensorParallelAttentionTest, EmptyBatchesAreNoWork) {
    OneRankLayer layer(small_config());
    for (const Shape& shape : {Shape{0, 5, kWidth}, Shape{2, 0, kWidth}}) {
        const Tensor x = Tensor::zeros(shape, kFp32);
        AttentionSaved saved;
        EXPECT_EQ(layer->forward(x, {}, saved, nullptr).shape(), shape);
        EXPECT_EQ(layer->backward(x, {}, saved).shape(), shape);
    }
}

TEST(TensorParallelAttentionTest, DecodingRefusesAFullCache) {
    OneRankLayer layer(small_config());
    KvCache cache = layer->make_cache(1, 4);
    layer->decode(gaussian({1, 3, kWidth}, kFp32, 1), cache);
    EXPECT_EQ(cache.length, 3);
    EXPECT_THROW(layer->decode(gaussian({1, 2, kWidth}, kFp32, 1), cache), Error);
    EXPECT_THROW(layer->decode(gaussian({2, 1, kWidth}, kFp32, 1), cache), Error);
    EXPECT_EQ(cache.length, 3);
}

TEST(TensorParallelAttentionTest, ImpossibleConfigurationsNameTheKeyToChange) {
    const auto message = [](std::int64_t tensor_parallel,
                            const std::function<void(AttentionConfig&)>& change) -> std::string {
        AttentionConfig config = small_config();
        change(config);
        try {
            config.validate(tensor_parallel);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig);
            return error.what();
        }
        return "accepted";
    };
    const auto expect = [&](std::int64_t tensor_parallel,
                            const std::function<void(AttentionConfig&)>& change,
                            const std::string& part) {
        const std::string text = message(tensor_parallel, change);
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    for (const std::int64_t size : {1, 2, 4}) EXPECT_EQ(message(size, [](auto&) {}), "accepted");
    expect(
        1, [](auto& c) { c.num_kv_heads = 3; }, "attention.num_kv_heads: got 3, want a divisor");
    expect(
        1, [](auto& c) { c.num_kv_heads = 0; }, "attention.num_kv_heads: got 0");
    expect(
        1, [](auto& c) { c.num_heads = 0; }, "attention.num_heads: got 0");
    expect(
        3, [](auto&) {},
        "attention.num_heads: got 4, want a multiple of parallel.tensor_parallel 3");
    expect(
        8, [](auto& c) { c.num_heads = 12; }, "parallel.tensor_parallel 8");
    expect(
        4, [](auto& c) { c.num_heads = 12, c.num_kv_heads = 6; },
        "attention.num_kv_heads: got 6, want a divisor or a multiple of parallel.tensor_parallel "
        "4");
    expect(
        1, [](auto& c) { c.head_dim = 33; }, "attention.head_dim: got 33, want an even number");
    expect(
        1, [](auto& c) { c.head_dim = 48; },
        "attention.head_dim: got 48, want one of 32, 64, 80, 96, 128, 192, 256");
    expect(
        1, [](auto& c) { c.rope.rotary_fraction = 0.1; }, "rope.rotary_fraction: got 0.1");
    expect(
        1, [](auto& c) { c.rope.theta = -1.0; }, "rope.theta: got -1");
    expect(
        1, [](auto& c) { c.window = -1; }, "attention.window: got -1");
    expect(
        1, [](auto& c) { c.softmax_scale = -0.5; }, "attention.softmax_scale: got -0.5");
    expect(
        1, [](auto& c) { c.qk_norm.eps = 0.0; }, "attention.qk_norm.eps: got 0");
    expect(
        1, [](auto& c) { c.qk_norm.gain_init = NAN; }, "attention.qk_norm.gain_init: got nan");
    EXPECT_EQ(message(1, [](auto& c) { c.qk_norm.kind = Kind::kNone, c.qk_norm.eps = 0.0; }),
              "accepted");
}

}  // namespace
}  // namespace evenkeel
