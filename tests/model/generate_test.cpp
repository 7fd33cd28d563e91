#include "model/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/method.h"
#include "tests/support/compare.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::SoloGrid;
using testing::tiny_model;

ModelConfig byte_model() {
    ModelConfig config = tiny_model();
    config.vocab_size = 256;
    return config;
}

Tensor as_tokens(const std::string& text) {
    const Tensor tokens =
        Tensor::uninitialized({1, static_cast<std::int64_t>(text.size())}, DType::kInt32);
    for (std::size_t i = 0; i < text.size(); ++i) {
        tokens.data<std::int32_t>()[i] = static_cast<unsigned char>(text[i]);
    }
    return tokens;
}

TEST(GenerateTest, GreedyDecodingIsTheArgmaxOfTheWholeForward) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, byte_model(), 1);
    const std::string prompt = "even keel";
    const std::string text = generate(model, prompt, {.tokens = 40, .temperature = 0.0});
    ASSERT_EQ(text.size(), prompt.size() + 40);
    EXPECT_EQ(text.substr(0, prompt.size()), prompt);
    const Tensor logits = model.local_logits(as_tokens(text));  // [1, T, V]
    std::set<char> used;
    for (std::size_t t = prompt.size(); t < text.size(); ++t) {
        const float* row = logits.data<float>() + (t - 1) * 256;
        EXPECT_EQ(static_cast<unsigned char>(text[t]), std::max_element(row, row + 256) - row)
            << "position " << t;
        used.insert(text[t]);
    }
    EXPECT_GT(used.size(), 3u) << "a constant text proves little";
}

void expect_decodes_like_forward(const ModelConfig& config) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, config, 1);
    testing::randomize_gains(model);
    const Tensor tokens = testing::random_batch(3, 12, 32, 5).tokens;
    const Tensor want = model.local_logits(tokens);  // [B, T, V]
    auto state = model.start_decoding(3, 12);
    for (const auto& [begin, end] : {std::pair{0, 5}, std::pair{5, 6}, std::pair{6, 12}}) {
        const Tensor got = model.decode(*state, tokens.slice(1, begin, end).contiguous());
        EXPECT_TRUE(
            testing::near(got, want.slice(1, end - 1, end).contiguous().view({3, 32}), 1e-4, 1e-5))
            << "up to position " << end;
    }
}

TEST(GenerateTest, DecodesABatchLikeTheWholeForwardWithEveryMethod) {
    for (const Method* method : methods()) {
        SCOPED_TRACE(method->name);
        ModelConfig config = tiny_model();
        apply_method(method->name, config);
        // Where it bends the logits of so small a model.
        if (config.attention.softcap > 0.0) config.attention.softcap = 0.5;
        if (config.attention.sink == AttentionConfig::Sink::kLearned) {
            config.attention.sink_init = 0.5;
        }
        expect_decodes_like_forward(config);
    }
}

TEST(GenerateTest, DecodesABatchLikeTheWholeForwardWithWhatFamiliesHave) {
    for (const testing::FamilyTraits& family : testing::kFamilyTraits) {
        SCOPED_TRACE(family.name);
        ModelConfig config = tiny_model();
        family.apply(config);
        expect_decodes_like_forward(config);
    }
}

TEST(GenerateTest, SamplesReproducibly) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, byte_model(), 1);
    const SampleOptions options{.tokens = 30, .temperature = 1.0, .seed = 4};
    const std::string text = generate(model, "a", options);
    EXPECT_EQ(generate(model, "a", options), text);
    EXPECT_NE(generate(model, "a", {.tokens = 30, .temperature = 1.0, .seed = 5}), text);
}

TEST(GenerateTest, NearZeroTemperatureIsGreedy) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, byte_model(), 1);
    EXPECT_EQ(generate(model, "a", {.tokens = 20, .temperature = 1e-4}),
              generate(model, "a", {.tokens = 20, .temperature = 0.0}));
}

TEST(GenerateTest, GoesOnPastTheTrainedContext) {
    const SoloGrid solo;
    ModelConfig config = byte_model();
    LanguageModel whole(solo.grid, config, 1);
    config.max_seq_len = 16;
    LanguageModel windowed(solo.grid, config, 1);
    const SampleOptions options{.tokens = 50, .temperature = 0.0};
    const std::string text = generate(windowed, "ab", options);
    ASSERT_EQ(text.size(), 52u);
    EXPECT_EQ(text.substr(0, 17), generate(whole, "ab", options).substr(0, 17));
    // The 17th byte fills the context; the next is made from the last 8.
    EXPECT_EQ(text.substr(9, 9),
              generate(windowed, text.substr(9, 8), {.tokens = 1, .temperature = 0.0}));
}

TEST(GenerateTest, StartsFromANewlineWithoutAPrompt) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, byte_model(), 1);
    const std::string text = generate(model, "", {.tokens = 10, .temperature = 0.0});
    EXPECT_EQ("\n" + text, generate(model, "\n", {.tokens = 10, .temperature = 0.0}));
}

TEST(GenerateTest, DrawsBytesOnlyFromALargerVocabulary) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    config.vocab_size = 512;
    LanguageModel model(solo.grid, config, 1);
    for (const double temperature : {0.0, 1.0}) {
        const std::string text = generate(model, "a", {.tokens = 40, .temperature = temperature});
        ASSERT_EQ(text.size(), 41u);
        if (temperature > 0.0) continue;
        const Tensor logits = model.local_logits(as_tokens(text));  // [1, T, V]
        bool larger_elsewhere = false;
        for (std::size_t t = 1; t < text.size(); ++t) {
            const float* row = logits.data<float>() + (t - 1) * 512;
            EXPECT_EQ(static_cast<unsigned char>(text[t]), std::max_element(row, row + 256) - row)
                << "position " << t;
            larger_elsewhere |= std::max_element(row, row + 512) - row >= 256;
        }
        EXPECT_TRUE(larger_elsewhere) << "the other tokens were never the likeliest";
    }
}

TEST(GenerateTest, HoldsNoMoreContextThanTheTextFills) {
    const SoloGrid solo;
    ModelConfig config = byte_model();
    const SampleOptions options{.tokens = 20, .temperature = 0.0};
    LanguageModel model(solo.grid, config, 1);
    const std::string text = generate(model, "ab", options);
    config.max_seq_len = 1 << 30;
    LanguageModel far(solo.grid, config, 1);
    EXPECT_EQ(generate(far, "ab", options), text);
}

}  // namespace
}  // namespace evenkeel
