// A Hugging Face folder as a source of this project's parameters.
#include "model/hugging_face/folder.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/model/hugging_face/test_folder.h"
#include "tests/support/compare.h"
#include "tests/support/tiny_model.h"

namespace evenkeel::hugging_face {
namespace {

using testing::replaced;
using testing::same_bits;
using testing::TestFolder;
using testing::thrown;

void expect_refused(const TestFolder& folder, const std::string& reason) {
    const std::string message = thrown([&] { Folder(folder.path()); });
    EXPECT_NE(message.find(reason), std::string::npos) << "got: " << message;
}

// StableLM keeps a tensor for each head's gains.
constexpr const char* kStableLm = R"({"model_type": "stablelm", "vocab_size": 64,
    "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "qk_layernorm": true})";

TEST(HuggingFaceFolder, GivesParametersUnderOurNames) {
    TestFolder folder;
    folder.write_shards(3);
    const Folder source(folder.path());
    EXPECT_STREQ(source.family().name, "llama");
    EXPECT_EQ(source.config().type, ComputeType::kFp32);
    EXPECT_EQ(source.config().norm_eps, 1e-5);
    const Tensor got = testing::poisoned({48, 32}, DType::kFloat32);
    source.read_slice("layers.1.feed_forward.w_up", 0, 0, 48, got);
    EXPECT_TRUE(same_bits(got, folder.tensor("model.layers.1.mlp.up_proj.weight")));
    EXPECT_FALSE(source.contains("model.norm.weight"));
    EXPECT_THROW(source.shape("model.norm.weight"), Error);
}

TEST(HuggingFaceFolder, SlicesOfEveryKindAreSlicesOfTheWhole) {
    TestFolder folder(DType::kFloat32, kStableLm);
    folder.write_single();
    const Folder source(folder.path());
    ASSERT_EQ(source.shape("layers.0.attention.q_gain"), (Shape{4, 32}));
    for (const std::string& name : source.names()) {
        const Shape shape = source.shape(name);
        const Tensor whole = testing::poisoned(shape, DType::kFloat32);
        source.read_slice(name, 0, 0, shape[0], whole);
        for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
            Shape part = shape;
            const std::int64_t begin = shape[dim] / 4, end = shape[dim] - shape[dim] / 4;
            part[dim] = end - begin;
            const Tensor got = testing::poisoned(part, DType::kFloat32);
            source.read_slice(name, dim, begin, end, got);
            EXPECT_TRUE(same_bits(got, whole.slice(dim, begin, end).contiguous()))
                << name << " dimension " << dim;
        }
    }
    const Tensor gain = testing::poisoned({1, 32}, DType::kFloat32);
    source.read_slice("layers.1.attention.k_gain", 0, 1, 2, gain);
    EXPECT_TRUE(same_bits(gain.view({32}),
                          folder.tensor("model.layers.1.self_attn.k_layernorm.norms.1.weight")));
}

TEST(HuggingFaceFolder, AModelLoadsFromIt) {
    TestFolder folder(DType::kBFloat16);
    folder.write_shards(2);
    const Folder source(folder.path());
    EXPECT_EQ(source.config().type, ComputeType::kBf16);
    const testing::SoloGrid solo;
    LanguageModel model(solo.grid, source.config(), 1);
    model.load_weights(folder.path());  // an open folder or its path
    model.load_weights(source);
    EXPECT_TRUE(same_bits(testing::find(model, "layers.0.attention.wo").value,
                          folder.tensor("model.layers.0.self_attn.o_proj.weight")));
}

TEST(HuggingFaceFolder, NamesWhatIsMissingAndWhatIsTooMuch) {
    TestFolder folder;
    folder.tensors.emplace_back("model.layers.0.self_attn.q_proj.bias",
                                Tensor::zeros({128}, DType::kFloat32));
    folder.tensors.erase(folder.tensors.begin() + 1);
    folder.write_single();
    expect_refused(folder, "they lack \"model.layers.0.input_layernorm.weight\"");
    expect_refused(folder, "the model has no \"model.layers.0.self_attn.q_proj.bias\"");
}

TEST(HuggingFaceFolder, LeavesOutTablesOfRotation) {
    TestFolder folder;
    folder.tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq",
                                Tensor::zeros({16}, DType::kFloat32));
    folder.write_single();
    EXPECT_EQ(Folder(folder.path()).left_out(),
              (std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq"}));
}

TEST(HuggingFaceFolder, ATiedOutputMayBeThereIfItIsTheEmbedding) {
    TestFolder folder;
    folder.files.write("config.json", replaced(folder.config, "\"tie_word_embeddings\": false",
                                               "\"tie_word_embeddings\": true"));
    folder.write_single();
    expect_refused(folder, "\"lm_head.weight\" differs from \"model.embed_tokens.weight\"");
    folder.tensor("lm_head.weight") = folder.tensor("model.embed_tokens.weight");
    folder.write_single();
    EXPECT_EQ(Folder(folder.path()).left_out(), (std::vector<std::string>{"lm_head.weight"}));
}

TEST(HuggingFaceFolder, RefusesShapesAndTypesThatAreNotTheConfigurations) {
    TestFolder folder;
    folder.tensor("model.norm.weight") = Tensor::zeros({31}, DType::kFloat32);
    folder.write_single();
    expect_refused(folder, "\"model.norm.weight\": got shape [31], want [32]");
    folder.tensor("model.norm.weight") = Tensor::zeros({32}, DType::kInt32);
    folder.write_single();
    expect_refused(folder, "\"model.norm.weight\": got I32, want F32, BF16 or F16");
    folder.tensor("model.norm.weight") = Tensor::zeros({32}, DType::kFloat64);
    folder.write_single();
    expect_refused(folder, "got F64, want F32, BF16 or F16; cast it first");
}

TEST(HuggingFaceFolder, RefusesModulesOfOneTensorThatDifferInType) {
    TestFolder folder(DType::kFloat32, kStableLm);
    const std::string name = "model.layers.0.self_attn.q_layernorm.norms.1.weight";
    folder.tensor(name) = folder.tensor(name).to(DType::kBFloat16);
    folder.write_single();
    expect_refused(folder, "\"" + name + "\": got BF16, want F32, the type of \"");
}

TEST(HuggingFaceFolder, SizesThatAreNoneAreRefusedWithFileAndKey) {
    for (const auto& [from, to] :
         {std::pair{"\"intermediate_size\": 48", "\"intermediate_size\": 0"},
          {"\"max_position_embeddings\": 64", "\"max_position_embeddings\": 0"}}) {
        TestFolder folder;
        folder.write_single();
        folder.files.write("config.json", replaced(folder.config, from, to));
        const std::string key = std::string(to).substr(1, std::string(to).find(':') - 2);
        expect_refused(folder, "config.json: " + key + ": there is no such model");
    }
}

TEST(HuggingFaceFolder, RefusesAWeightThatIsNotFiniteByNameAndPlace) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        TestFolder folder(dtype);
        const std::string name = "model.layers.1.self_attn.o_proj.weight";
        const Tensor bad = folder.tensor(name).to(DType::kFloat32);
        bad.data<float>()[5 * 128 + 7] = std::numeric_limits<float>::quiet_NaN();
        folder.tensor(name) = bad.to(dtype);
        folder.write_single();
        const Folder source(folder.path());
        const std::string want = "tensor \"" + name + "\": element [5, 7] is NaN or infinite";
        const auto read = [&](int dim, std::int64_t begin, std::int64_t end) {
            Shape shape = {32, 128};
            shape[dim] = end - begin;
            const Tensor out = Tensor::zeros(shape, source.dtype("layers.1.attention.wo"));
            return thrown(
                [&] { source.read_slice("layers.1.attention.wo", dim, begin, end, out); });
        };
        EXPECT_NE(read(0, 0, 32).find(want), std::string::npos) << read(0, 0, 32);
        EXPECT_NE(read(0, 4, 8).find(want), std::string::npos) << read(0, 4, 8);
        EXPECT_NE(read(1, 6, 9).find(want), std::string::npos) << read(1, 6, 9);
        EXPECT_EQ(read(1, 8, 128), "");
    }
}

TEST(HuggingFaceFolder, RefusesAStackedGainThatIsNotFiniteByItsOwnName) {
    TestFolder folder(DType::kFloat32, kStableLm);
    const std::string name = "model.layers.0.self_attn.q_layernorm.norms.2.weight";
    folder.tensor(name).data<float>()[3] = std::numeric_limits<float>::infinity();
    folder.write_single();
    const Folder source(folder.path());
    const Tensor out = Tensor::zeros({4, 32}, DType::kFloat32);
    EXPECT_NE(thrown([&] {
                  source.read_slice("layers.0.attention.q_gain", 0, 0, 4, out);
              }).find("\"" + name + "\": element [3]"),
              std::string::npos);
}

TEST(HuggingFaceFolder, RefusesConfigurationsWithTheReason) {
    TestFolder folder;
    folder.write_single();
    const auto with = [&](const std::string& from, const std::string& to) {
        folder.files.write("config.json", replaced(folder.config, from, to));
    };
    with("\"model_type\": \"llama\"", "\"model_type\": \"mamba\"");
    expect_refused(folder, "model_type: got \"mamba\": want one of llama, ");
    with("\"an_unknown_key\"", "\"quantization_config\"");
    expect_refused(folder, "quantised weights are not read");
    with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4611686018427387904");
    expect_refused(folder, "the files hold only 21 tensors");
    with("\"num_attention_heads\": 4", "\"num_attention_heads\": 4611686018427387904");
    expect_refused(folder, "num_attention_heads");
    with("\"num_attention_heads\": 4", "\"num_attention_heads\": 0");
    expect_refused(folder, "num_attention_heads");
    with("\"hidden_size\": 32", "\"hidden_size\": 9223372036854775807");
    expect_refused(folder, "model.width");
    with("\"hidden_size\": 32", "\"hidden_size\": -32");
    expect_refused(folder, "model.width");
    with("\"head_dim\": 32", "\"head_dim\": 33");
    EXPECT_NE(thrown([&] { Folder(folder.path()); }), "");
    with("\"vocab_size\": 64", "\"vocab_size\": \"64\"");
    expect_refused(folder, "vocab_size: got \"64\": want an integer");
    with("{", "[");
    EXPECT_FALSE(is_folder(folder.path()));
    EXPECT_NE(thrown([&] { Folder(folder.path()); }), "");
}

}  // namespace
}  // namespace evenkeel::hugging_face
