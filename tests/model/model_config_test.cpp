#include <gtest/gtest.h>

#include <limits>

#include "model/method.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

std::string complaint(const ModelConfig& config, std::int64_t tensor_parallel) {
    try {
        config.validate(tensor_parallel);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
    return "none";
}

TEST(ModelConfigTest, AcceptsTheTinyModelAtSizesThatDivide) {
    for (std::int64_t size : {1, 2, 4}) {
        EXPECT_EQ(complaint(testing::tiny_model(), size), "none") << size;
    }
}

TEST(ModelConfigTest, AcceptsAnyVocabularyAtAnySize) {
    ModelConfig config = testing::tiny_model();
    for (std::int64_t vocab_size : {1, 33, 257}) {
        config.vocab_size = vocab_size;
        EXPECT_EQ(complaint(config, 4), "none") << vocab_size;
    }
}

TEST(ModelConfigTest, NamesTheKeyToChange) {
    ModelConfig config = testing::tiny_model();
    config.feed_forward_width = 50;
    EXPECT_EQ(complaint(config, 4),
              "[ModelConfig] model.feed_forward_width: got 50, want a multiple of "
              "parallel.tensor_parallel (4)");
    config = testing::tiny_model();
    config.vocab_size = 0;
    EXPECT_NE(complaint(config, 1).find("model.vocab_size: got 0, want 1"), std::string::npos);
    config = testing::tiny_model();
    config.num_layers = 0;
    EXPECT_NE(complaint(config, 1).find("model.num_layers: got 0, want 1"), std::string::npos);
    config.num_layers = 65537;
    EXPECT_NE(complaint(config, 1).find("model.num_layers: got 65537, want at most 65536"),
              std::string::npos);
    config = testing::tiny_model();
    EXPECT_NE(complaint(config, 3), "none");  // 4 heads over 3 ranks
    config = testing::tiny_model();
    config.norm_eps = 0.0;
    EXPECT_NE(complaint(config, 1).find("model.norm_eps"), std::string::npos);
}

TEST(ModelConfigTest, NamesASizeWhoseProductsWouldOverflow) {
    constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() - 1;
    const auto expect_named = [&](auto set, const char* key) {
        ModelConfig config = testing::tiny_model();
        set(config);
        EXPECT_NE(complaint(config, 1).find(concat(key, ": got ", kHuge)), std::string::npos)
            << complaint(config, 1);
    };
    expect_named([](ModelConfig& c) { c.vocab_size = kHuge; }, "model.vocab_size");
    expect_named([](ModelConfig& c) { c.num_layers = kHuge; }, "model.num_layers");
    expect_named([](ModelConfig& c) { c.width = kHuge; }, "model.width");
    expect_named([](ModelConfig& c) { c.feed_forward_width = kHuge; }, "model.feed_forward_width");
    expect_named([](ModelConfig& c) { c.max_seq_len = kHuge; }, "model.max_seq_len");
    expect_named([](ModelConfig& c) { c.attention.num_heads = kHuge; }, "attention.num_heads");
}

TEST(ModelConfigTest, RefusesSizesThatFitOneByOneButNotTogether) {
    ModelConfig config = testing::tiny_model();
    config.width = config.feed_forward_width = std::int64_t{1} << 30;
    EXPECT_NE(complaint(config, 1).find("want fewer than 2^58"), std::string::npos)
        << complaint(config, 1);
    config = testing::tiny_model();
    config.num_layers = 1 << 16;
    EXPECT_EQ(complaint(config, 1), "none");
    EXPECT_GT(parameter_count(config), 0);
    config.num_layers = (1 << 16) + 1;
    EXPECT_NE(complaint(config, 1).find("model.num_layers: got 65537, want at most 65536"),
              std::string::npos)
        << complaint(config, 1);
}

TEST(ModelConfigTest, WarnsOfSigmaReparametrisationUnderANorm) {
    ModelConfig config = testing::tiny_model();
    EXPECT_TRUE(config.warnings().empty());
    config.sigma_reparam = true;
    ASSERT_EQ(config.warnings().size(), 1u);
    EXPECT_NE(
        config.warnings().front().find("docs/qk_norm.md#sigma-reparametrisation-under-a-norm"),
        std::string::npos);
    config.attention.qk_norm.kind = QkNormKind::kNone;
    EXPECT_TRUE(config.warnings().empty());
}

TEST(ModelConfigTest, WarnsOfAMethodWithoutWhatItIs) {
    const auto warnings = [](const char* method, auto change) {
        ModelConfig config = testing::tiny_model();
        config.method = method;
        apply_method(method, config);
        change(config);
        std::string text;
        for (const std::string& warning : config.warnings()) text += warning + "\n";
        return text;
    };
    const auto expect = [](const std::string& text, const char* words) {
        EXPECT_NE(text.find(words), std::string::npos) << text;
        EXPECT_NE(text.find("docs/qk_norm.md#a-method-without-what-it-is"), std::string::npos)
            << text;
    };
    for (const Method* method : methods()) {
        EXPECT_EQ(warnings(method->name, [](auto&) {}).find("a-method-without"), std::string::npos)
            << method->name;
    }
    const auto kind = [](QkNormKind kind) {
        return [kind](ModelConfig& c) { c.attention.qk_norm.kind = kind; };
    };
    expect(warnings("ngpt", kind(QkNormKind::kRms)), "want l2");
    expect(warnings("ngpt", kind(QkNormKind::kNone)), "want l2");
    expect(warnings("henry", kind(QkNormKind::kNone)), "method: henry with");
    expect(warnings("softcap", [](auto& c) { c.attention.softcap = 0.0; }), "softcap 0, as");
    expect(warnings("sink", [](auto& c) { c.attention.sink = AttentionConfig::Sink::kNone; }),
           "sink none, as");
    expect(warnings("qk_clip", [](auto& c) { c.attention.qk_clip_threshold = 0.0; }),
           "qk_clip_threshold 0, as");
    expect(warnings("sigma_reparam", [](auto& c) { c.sigma_reparam = false; }),
           "sigma_reparam false, as");
}

TEST(ModelConfigTest, WarnsOfABoundUnderWhichNoKeyCouldStandOut) {
    ModelConfig config = testing::tiny_model();
    config.max_seq_len = 64;
    const auto warnings = [&](double bound) {
        config.attention.qk_norm.gain_bound = bound;
        return config.warnings();
    };
    ASSERT_EQ(warnings(1.0).size(), 1u);
    EXPECT_NE(warnings(1.0).front().find("gain_bound: got 1,"), std::string::npos);
    EXPECT_NE(warnings(1.0).front().find("none of 64 keys"), std::string::npos);
    EXPECT_NE(warnings(1.0).front().find("want 2.08 or more"), std::string::npos)
        << warnings(1.0).front();
    EXPECT_TRUE(warnings(2.08).empty());
    EXPECT_TRUE(warnings(0.0).empty());
    config.attention.window = 4;
    EXPECT_TRUE(warnings(1.0).empty());
    config.attention.window = 0;
    config.attention.qk_norm = {};
    config.attention.qk_norm.kind = QkNormKind::kNone;
    config.attention.softcap = 2.0;
    ASSERT_EQ(config.warnings().size(), 1u);
    EXPECT_NE(config.warnings().front().find("model.attention.softcap: got 2"), std::string::npos);
}

TEST(ModelConfigTest, ReadsItsEnumsByName) {
    ModelConfig config;
    const VisitFields visit = [&](ConfigVisitor& v) { config.visit_fields(v); };
    parse_config(visit, R"({"activation": "gelu", "type": "fp32", "attention": {"num_heads": 2}})",
                 "test");
    EXPECT_EQ(config.activation, Activation::kGelu);
    EXPECT_EQ(config.type, ComputeType::kFp32);
    EXPECT_EQ(config.attention.num_heads, 2);
}

}  // namespace
}  // namespace evenkeel
