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
    std::ifstream file(std::string(EVENKEEL_TEST_GOLDEN) + "/" + name, std::ios::binary);
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

struct GradientCase {
    const char* name;
    ReferenceShape shape;
    AttentionMask mask;
    QkNormKind kind = QkNormKind::kNone;
    bool full_width = false;
};
void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name; }

class ReferenceGradientTest : public ::testing::TestWithParam<GradientCase> {};

// The gradient of <out, dout> against central differences in every input, gains included.
TEST_P(ReferenceGradientTest, MatchesFiniteDifferences) {
    const GradientCase& c = GetParam();
    const ReferenceShape& s = c.shape;
    ReferenceOptions options;
    options.attention.mask = c.mask;
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
        GradientCase{
            "documents", {1, 6, 6, 2, 1, 6}, {true, 0, {0, 2, 6}}, QkNormKind::kRms, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace evenkeel
