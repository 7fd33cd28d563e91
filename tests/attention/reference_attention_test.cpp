#include "attention/reference_attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "framework/rng.h"

namespace evenkeel {
namespace {

using Values = std::vector<double>;

Values normals(std::size_t count, std::uint64_t seed) {
    const CounterRng rng(seed, purpose("reference attention test"));
    Values values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = rng.normal(i);
    return values;
}

double dot(const Values& a, const Values& b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

Values read_fixture(const char* name) {
    std::ifstream file(std::string(EVENKEEL_DRIFT_DATA) + "/" + name, std::ios::binary);
    std::vector<unsigned char> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.size(), 16u * 64u * 8u) << name;
    Values values;
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        std::uint64_t word = 0;
        for (int b = 7; b >= 0; --b) word = word << 8 | bytes[i + static_cast<std::size_t>(b)];
        values.push_back(std::bit_cast<double>(word));
    }
    return values;
}

TEST(ReferenceAttentionTest, AgreesWithValuesWorkedOutByHand) {
    // One query, two keys; logits ln 3 and 0, so probabilities 3/4 and 1/4.
    const ReferenceShape shape{1, 1, 2, 1, 1, 2};
    ReferenceOptions options;
    options.attention.mask.causal = false;
    options.attention.softmax_scale = 0.5;
    const Values q{2.0, 0.0}, k{std::log(3.0), 5.0, 0.0, 7.0}, v{4.0, 8.0, 0.0, -8.0};
    const ReferenceResult r = reference_attention_forward(shape, q, k, v, options);
    EXPECT_NEAR(r.out[0], 3.0, 1e-14);
    EXPECT_NEAR(r.out[1], 4.0, 1e-14);
    EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-14);
    EXPECT_NEAR(r.max_logit[0], std::log(3.0), 1e-14);
    EXPECT_NEAR(r.entropy[0], std::log(4.0) - 0.75 * std::log(3.0), 1e-14);
}

TEST(ReferenceAttentionTest, MaskFollowsItsDefinition) {
    AttentionMask mask;
    // Two queries, four keys: query 0 stands at key position 2.
    EXPECT_TRUE(reference_sees(mask, 2, 4, 0, 2));
    EXPECT_FALSE(reference_sees(mask, 2, 4, 0, 3));
    EXPECT_TRUE(reference_sees(mask, 2, 4, 1, 3));
    // More queries than keys: the first ones see nothing.
    EXPECT_FALSE(reference_sees(mask, 4, 2, 1, 0));
    EXPECT_TRUE(reference_sees(mask, 4, 2, 2, 0));
    mask.window = 2;
    EXPECT_TRUE(reference_sees(mask, 4, 4, 3, 2));
    EXPECT_FALSE(reference_sees(mask, 4, 4, 3, 1));
    mask.causal = false;
    EXPECT_TRUE(reference_sees(mask, 4, 4, 1, 2));
    EXPECT_FALSE(reference_sees(mask, 4, 4, 1, 3));
    mask.window = 0;
    mask.cu_seqlens = {0, 2, 4};
    EXPECT_TRUE(reference_sees(mask, 4, 4, 0, 1));
    EXPECT_FALSE(reference_sees(mask, 4, 4, 1, 2));
    EXPECT_FALSE(reference_sees(mask, 4, 4, 2, 1));
}

// The published table for seed 0: largest |logit| and mean entropy as q and k grow together by s.
TEST(ReferenceAttentionTest, ReproducesTheLogitDriftTable) {
    const Values base_q = read_fixture("drift_base_q.f64"),
                 base_k = read_fixture("drift_base_k.f64");
    ASSERT_EQ(base_q.size(), 1024u);
    ASSERT_EQ(base_k.size(), 1024u);
    EXPECT_DOUBLE_EQ(base_q[0], 0.1257302210933933);
    EXPECT_DOUBLE_EQ(base_k[1023], 0.30767501975974476);
    const struct {
        double s, max_abs, entropy;
    } table[] = {{1, 2.644235464, 2.3317849},
                 {2, 10.57694186, 0.6763044361},
                 {4, 42.30776743, 0.1484624702},
                 {8, 169.2310697, 0.03749521999},
                 {16, 676.9242788, 0.0009925573752}};
    const ReferenceShape shape{1, 16, 16, 1, 1, 64};
    ReferenceOptions options;
    options.attention.mask.causal = false;
    for (const auto& row : table) {
        Values q = base_q, k = base_k, minus_q = base_q;
        for (double& x : q) x *= row.s;
        for (double& x : k) x *= row.s;
        for (double& x : minus_q) x *= -row.s;
        const ReferenceResult r = reference_attention_forward(shape, q, k, k, options);
        const ReferenceResult negated = reference_attention_forward(shape, minus_q, k, k, options);
        const double max_abs = std::max(r.max_logit[0], negated.max_logit[0]);
        EXPECT_NEAR(max_abs, row.max_abs, 1e-9 * row.max_abs) << "s = " << row.s;
        // The table adds 1e-12 inside the logarithm, which takes at most 16e-12 off.
        EXPECT_NEAR(r.entropy[0], row.entropy, 1e-9 * row.entropy + 2e-11) << "s = " << row.s;
    }
}

TEST(ReferenceAttentionTest, ReproducesTheTableWithQkNorm) {
    const Values q = read_fixture("drift_base_q.f64");
    Values k = read_fixture("drift_base_k.f64");
    const ReferenceShape shape{1, 16, 16, 1, 1, 64};
    ReferenceOptions options;
    options.attention.mask.causal = false;
    options.attention.softmax_scale = 1.0;
    // g = 10 times the cosine.
    options.q.kind = options.k.kind = QkNormKind::kL2;
    options.q.eps = options.k.eps = 0.0;
    options.q.gain = Values(64, 10.0);
    for (double s : {1.0, 16.0}) {
        for (double& x : k) x *= s;
        const ReferenceResult r = reference_attention_forward(shape, q, k, k, options);
        Values minus_q = q;
        for (double& x : minus_q) x = -x;
        const ReferenceResult negated = reference_attention_forward(shape, minus_q, k, k, options);
        EXPECT_NEAR(std::max(r.max_logit[0], negated.max_logit[0]), 3.302434894, 1e-8);
        EXPECT_NEAR(r.entropy[0], 2.12694335, 1e-8);
    }
}

// The row (1, 7) has mean 4, deviation 3, mean square 25 and length sqrt(50); (3, 4) has length 5.
TEST(ReferenceAttentionTest, NormalisesAsWorkedOutByHand) {
    const Values x{1.0, 7.0, 3.0, 4.0};
    ReferenceQkNormRope options;
    options.eps = 0.0;
    const auto expect = [&](QkNormKind kind, bool full_width, const Values& want) {
        options.kind = kind;
        options.full_width = full_width;
        const Values got = reference_qk_norm_rope(x, 1, 1, 2, 2, options);
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_NEAR(got[i], want[i], 1e-15) << "kind " << static_cast<int>(kind) << ", " << i;
        }
    };
    const double rms = std::sqrt(12.5), total = std::sqrt(75.0 / 4.0);
    expect(QkNormKind::kNone, false, x);
    expect(QkNormKind::kRms, false, {1.0 / 5.0, 7.0 / 5.0, 3.0 / rms, 4.0 / rms});
    expect(QkNormKind::kRms, true, {1.0 / total, 7.0 / total, 3.0 / total, 4.0 / total});
    expect(QkNormKind::kL2, false, {1.0 / std::sqrt(50.0), 7.0 / std::sqrt(50.0), 0.6, 0.8});
    expect(QkNormKind::kLayerNorm, false, {-1.0, 1.0, -1.0, 1.0});
    options.eps = 7.0;  // inside the root: of the variance 9, of the sum 25
    expect(QkNormKind::kLayerNorm, false,
           {-0.75, 0.75, -0.5 / std::sqrt(7.25), 0.5 / std::sqrt(7.25)});
    options.eps = 11.0;
    expect(QkNormKind::kL2, false, {1.0 / std::sqrt(61.0), 7.0 / std::sqrt(61.0), 0.5, 4.0 / 6.0});
}

TEST(ReferenceAttentionTest, RotatedLogitsDependOnDistanceOnly) {
    for (RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
        ReferenceQkNormRope rope;
        rope.layout = layout;
        rope.frequencies = {1.0, 0.1, 0.01};
        const Values q = normals(8, 1), k = normals(8, 2);
        Values logits;
        for (std::int64_t shift : {0, 1000}) {
            rope.positions = {shift + 7};
            const Values turned_q = reference_qk_norm_rope(q, 1, 1, 1, 8, rope);
            rope.positions = {shift + 3};
            logits.push_back(dot(turned_q, reference_qk_norm_rope(k, 1, 1, 1, 8, rope)));
            // Channels beyond rotary_dim pass.
            EXPECT_EQ(turned_q[6], q[6]);
            EXPECT_EQ(turned_q[7], q[7]);
        }
        EXPECT_NEAR(logits[0], logits[1], 1e-12);
    }
}

Tensor sinks(std::int64_t heads) {
    Tensor sink = Tensor::uninitialized({heads}, DType::kFloat32);
    for (std::int64_t h = 0; h < heads; ++h)
        sink.data<float>()[h] = 0.75f - 0.5f * static_cast<float>(h);
    return sink;
}

// c = 50: the logit s becomes `capped`, and a step of it counts by `slope`.
TEST(ReferenceAttentionTest, SoftcapFollowsItsTable) {
    const struct {
        double s, capped, slope;
    } table[] = {{1, 0.9999, 0.9996},   {5, 4.983, 0.990},     {10, 9.869, 0.961},
                 {20, 18.997, 0.856},   {30, 26.852, 0.712},   {50, 38.080, 0.420},
                 {100, 48.201, 0.0707}, {300, 49.9994, 2.5e-5}};
    const ReferenceShape shape{1, 1, 2, 1, 1, 1};
    ReferenceOptions options;
    options.attention.mask.causal = false;
    options.attention.softmax_scale = 1.0;
    options.attention.softcap = 50.0;
    for (const auto& row : table) {
        const Values q{row.s}, k{1.0, 1.0}, v{1.0, -1.0};
        const ReferenceResult r = reference_attention_forward(shape, q, k, v, options);
        EXPECT_NEAR(r.max_logit[0], row.capped, 5e-4) << "s = " << row.s;
        EXPECT_DOUBLE_EQ(r.max_logit_uncapped[0], row.s);
        // Two tied keys: the first one's logit has the gradient 1/2, and is s times its key.
        const Values dk = reference_attention_backward(shape, q, k, v, {1.0}, options).dk;
        EXPECT_NEAR(dk[0] / (0.5 * row.s), row.slope, 0.02 * row.slope) << "s = " << row.s;
    }
}

// Attention with a sink is attention with one more key of that logit and value zero.
TEST(ReferenceAttentionTest, SinkIsOneMoreKeyWithoutValue) {
    const std::int64_t T = 4, S = 5, D = 3;
    const ReferenceShape shape{1, T, S, 2, 1, D}, one_more{1, T, S + 1, 1, 1, D};
    ReferenceOptions options;
    options.attention.mask = {false, 0, {}};
    options.attention.softmax_scale = 0.5;
    options.attention.softcap = 1.25;
    options.attention.sink = sinks(2);
    const Values q = normals(static_cast<std::size_t>(T * 2 * D), 1);
    const Values k = normals(static_cast<std::size_t>(S * D), 2), v = normals(k.size(), 3);
    const Values dout = normals(q.size(), 4);
    const ReferenceResult r = reference_attention_forward(shape, q, k, v, options);
    const ReferenceGradients g = reference_attention_backward(shape, q, k, v, dout, options);
    Values dk(k.size(), 0.0), dv(v.size(), 0.0);
    for (std::int64_t h = 0; h < 2; ++h) {
        // Channel 0 of q is 1 and of the last key the logit, so that q dot k is what a cap turns into
        // the sink, for every query.
        const double sink = options.attention.sink.data<float>()[h];
        Values q1, dout1, k1, v1;
        for (std::int64_t t = 0; t < T; ++t) {
            q1.push_back(1.0), dout1.push_back(0.0);
            for (std::int64_t d = 0; d < D; ++d) {
                q1.push_back(q[static_cast<std::size_t>((t * 2 + h) * D + d)]);
                dout1.push_back(dout[static_cast<std::size_t>((t * 2 + h) * D + d)]);
            }
        }
        for (std::int64_t j = 0; j < S; ++j) {
            k1.push_back(0.0), v1.push_back(0.0);
            for (std::int64_t d = 0; d < D; ++d) {
                k1.push_back(k[static_cast<std::size_t>(j * D + d)]);
                v1.push_back(v[static_cast<std::size_t>(j * D + d)]);
            }
        }
        k1.push_back(1.25 * std::atanh(sink / 1.25) / 0.5);
        v1.resize(v1.size() + 1 + D, 0.0), k1.resize(v1.size(), 0.0);
        ReferenceShape wider = one_more;
        wider.D = D + 1;
        ReferenceOptions plain = options;
        plain.attention.sink = {};
        const ReferenceResult want = reference_attention_forward(wider, q1, k1, v1, plain);
        const ReferenceGradients of = reference_attention_backward(wider, q1, k1, v1, dout1, plain);
        for (std::int64_t t = 0; t < T; ++t) {
            EXPECT_NEAR(r.lse[static_cast<std::size_t>(h * T + t)],
                        want.lse[static_cast<std::size_t>(t)], 1e-13);
            for (std::int64_t d = 0; d < D; ++d) {
                const auto at = static_cast<std::size_t>((t * 2 + h) * D + d);
                const auto there = static_cast<std::size_t>(t * (D + 1) + 1 + d);
                EXPECT_NEAR(r.out[at], want.out[there], 1e-13) << "head " << h << " query " << t;
                EXPECT_NEAR(g.dq[at], of.dq[there], 1e-13) << "head " << h << " query " << t;
            }
        }
        for (std::int64_t j = 0; j < S; ++j) {
            for (std::int64_t d = 0; d < D; ++d) {
                const auto at = static_cast<std::size_t>(j * D + d);
                dk[at] += of.dk[static_cast<std::size_t>(j * (D + 1) + 1 + d)];
                dv[at] += of.dv[static_cast<std::size_t>(j * (D + 1) + 1 + d)];
            }
        }
        EXPECT_NEAR(r.entropy[h], want.entropy[0], 1e-13);
        EXPECT_NEAR(r.entropy_share[h], want.entropy_share[0], 1e-13);
        EXPECT_EQ(r.saturation[h], want.saturation[0]);
        // The last key's gradient is scale * slope of the cap * that of the logit.
        const double slope = 1.0 - sink * sink / (1.25 * 1.25);
        EXPECT_NEAR(g.dsink[h], of.dk[static_cast<std::size_t>(S * (D + 1))] / (0.5 * slope),
                    1e-12);
    }
    for (std::size_t i = 0; i < k.size(); ++i) {
        EXPECT_NEAR(g.dk[i], dk[i], 1e-13) << "dk " << i;
        EXPECT_NEAR(g.dv[i], dv[i], 1e-13) << "dv " << i;
    }
}

TEST(ReferenceAttentionTest, TellsUniformRowsFromOneHotOnes) {
    const ReferenceShape shape{1, 4, 4, 1, 1, 1};
    ReferenceOptions options;
    const Values v(4, 1.0);
    const ReferenceResult uniform =
        reference_attention_forward(shape, Values(4, 0.0), Values(4, 1.0), v, options);
    EXPECT_NEAR(uniform.entropy_share[0], 1.0, 1e-15);
    EXPECT_EQ(uniform.saturation[0], 0.0);
    // All weight on key 0; the first query has no choice and does not count.
    const ReferenceResult one_hot =
        reference_attention_forward(shape, Values(4, 100.0), {10.0, 0.0, 0.0, 0.0}, v, options);
    EXPECT_NEAR(one_hot.entropy_share[0], 0.0, 1e-15);
    EXPECT_EQ(one_hot.saturation[0], 1.0);
    // With a sink of weight 1 it does, and has half of it.
    options.attention.sink = Tensor::zeros({1}, DType::kFloat32);
    const ReferenceResult sink =
        reference_attention_forward({1, 1, 1, 1, 1, 1}, {0.0}, {0.0}, {8.0}, options);
    EXPECT_NEAR(sink.out[0], 4.0, 1e-15);
    EXPECT_NEAR(sink.entropy_share[0], 1.0, 1e-15);
    EXPECT_NEAR(sink.lse[0], std::log(2.0), 1e-15);
    // A row that sees nothing.
    const ReferenceResult blind =
        reference_attention_forward({1, 1, 0, 1, 1, 1}, {0.0}, {}, {}, options);
    EXPECT_EQ(blind.out[0], 0.0);
    EXPECT_EQ(blind.lse[0], 0.0);
}

struct GradientCase {
    const char* name;
    ReferenceShape shape;
    AttentionMask mask;
    QkNormKind kind = QkNormKind::kNone;
    bool full_width = false;
    double softcap = 0.0;
    bool sink = false;
};
void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name; }

class ReferenceGradientTest : public ::testing::TestWithParam<GradientCase> {};

// The gradient of <out, dout> against central differences in every input, gains included.
TEST_P(ReferenceGradientTest, MatchesFiniteDifferences) {
    const GradientCase& c = GetParam();
    const ReferenceShape& s = c.shape;
    ReferenceOptions options;
    options.attention.mask = c.mask;
    options.attention.softcap = c.softcap;
    if (c.sink) options.attention.sink = sinks(s.H);
    if (c.kind != QkNormKind::kNone) {
        options.q.kind = options.k.kind = c.kind;
        options.q.full_width = options.k.full_width = c.full_width;
        options.q.gain = normals(static_cast<std::size_t>(s.H * s.D), 5);
        options.k.gain = normals(static_cast<std::size_t>(s.D), 6);
        options.k.gain_offset = 1.0;
        options.q.frequencies = options.k.frequencies = {1.0, 0.3};
        options.k.layout = options.q.layout = RopeLayout::kInterleaved;
        options.q.magnitude = 1.25;
    }
    Values q = normals(static_cast<std::size_t>(s.B * s.T * s.H * s.D), 1);
    Values k = normals(static_cast<std::size_t>(s.B * s.S * s.K * s.D), 2);
    Values v = normals(k.size(), 3);
    const Values dout = normals(q.size(), 4);
    const ReferenceGradients g = reference_attention_backward(s, q, k, v, dout, options);
    auto loss = [&] { return dot(reference_attention_forward(s, q, k, v, options).out, dout); };
    auto check = [&](const char* name, Values& x, const Values& gradient) {
        ASSERT_EQ(x.size(), gradient.size()) << name;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double h = 1e-5, kept = x[i];
            x[i] = kept + h;
            const double above = loss();
            x[i] = kept - h;
            const double below = loss();
            x[i] = kept;
            const double want = (above - below) / (2.0 * h);
            ASSERT_NEAR(gradient[i], want, 1e-8 * (1.0 + std::abs(want)))
                << name << " element " << i;
        }
    };
    check("q", q, g.dq);
    check("k", k, g.dk);
    check("v", v, g.dv);
    check("q_gain", options.q.gain, g.dq_gain);
    check("k_gain", options.k.gain, g.dk_gain);
    if (!c.sink) return;
    ASSERT_EQ(g.dsink.size(), static_cast<std::size_t>(s.H));
    for (std::int64_t i = 0; i < s.H; ++i) {
        const float h = 0x1p-16f;  // exact beside the sinks
        float& x = options.attention.sink.data<float>()[i];
        const float kept = x;
        x = kept + h;
        const double above = loss();
        x = kept - h;
        const double below = loss();
        x = kept;
        EXPECT_NEAR(g.dsink[static_cast<std::size_t>(i)], (above - below) / (2.0 * h), 1e-8)
            << "sink of head " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Masks,
    ReferenceGradientTest,
    ::testing::Values(
        GradientCase{"causal", {2, 3, 3, 2, 1, 6}, {}},
        GradientCase{"decoding", {1, 2, 5, 2, 2, 6}, {}, QkNormKind::kRms},
        GradientCase{"more_queries", {1, 5, 2, 1, 1, 6}, {}},
        GradientCase{"bidirectional", {1, 4, 3, 4, 2, 6}, {false, 0, {}}, QkNormKind::kL2},
        GradientCase{"window", {1, 5, 5, 2, 1, 6}, {true, 2, {}}, QkNormKind::kLayerNorm},
        GradientCase{"documents", {1, 6, 6, 2, 1, 6}, {true, 0, {0, 2, 6}}, QkNormKind::kRms, true},
        GradientCase{"softcap", {1, 4, 4, 2, 1, 6}, {}, QkNormKind::kRms, false, 1.5},
        GradientCase{"sink", {1, 5, 3, 4, 2, 6}, {}, QkNormKind::kNone, false, 0.0, true},
        GradientCase{"softcap_and_sink",
                     {2, 3, 4, 2, 1, 6},
                     {false, 0, {}},
                     QkNormKind::kRms,
                     false,
                     2.0,
                     true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace evenkeel
