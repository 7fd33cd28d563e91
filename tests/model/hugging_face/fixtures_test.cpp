// The families' names and shapes against folders that `transformers` wrote
// (tests/fixtures/hugging_face/make_fixtures.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "framework/error.h"
#include "framework/storage/safetensors.h"
#include "model/hugging_face/family.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = EVENKEEL_HUGGING_FACE_DIR;

ConfigJson config_of(const std::string& fixture) {
    const fs::path path = kFixtures / fixture / "config.json";
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return ConfigJson::parse(text.str(), path.string());
}

class Fixture : public ::testing::TestWithParam<const char*> {};

TEST_P(Fixture, HasTheTensorsThatItsFamilyNames) {
    std::map<std::string, Shape> theirs;
    for (const fs::directory_entry& file : fs::directory_iterator(kFixtures / GetParam())) {
        if (file.path().extension() != ".safetensors") continue;
        const SafetensorsReader reader(file.path().string());
        for (const TensorInfo& tensor : reader.tensors()) theirs[tensor.name] = tensor.shape;
    }
    const ConfigJson json = config_of(GetParam());
    const Family* family = find_family(json.text("model_type"));
    ASSERT_NE(family, nullptr);
    const ModelConfig config = family->read_config(json);
    config.validate(1);
    std::map<std::string, Shape> named;
    for (const TensorMap& map : family->tensors(config)) {
        for (const TensorMap::Theirs& tensor : map.theirs) named[tensor.name] = tensor.shape;
    }
    EXPECT_EQ(named, theirs);
}

TEST_P(Fixture, HasAConfigurationThatComesBackAsItIs) {
    const ConfigJson json = config_of(GetParam());
    const Family& family = *find_family(json.text("model_type"));
    ModelConfig config = family.read_config(json);
    const auto text_of = [](ModelConfig& c) {
        return to_json([&](ConfigVisitor& v) { c.visit_fields(v); });
    };
    for (ConfigJson written : {ConfigJson(), json}) {
        family.write_config(config, written);
        ModelConfig again = family.read_config(written);
        EXPECT_EQ(text_of(again), text_of(config)) << written.to_text();
    }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace,
                         Fixture,
                         ::testing::Values("llama",
                                           "llama_gqa",
                                           "llama_scaled",
                                           "qwen2",
                                           "qwen3",
                                           "mistral",
                                           "olmo2",
                                           "gemma3_text",
                                           "stablelm",
                                           "stablelm_parallel",
                                           "cohere",
                                           "evenkeel",
                                           "evenkeel_parallel",
                                           "evenkeel_post_norm"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HuggingFaceFixtures, GptOssIsRefusedForItsExperts) {
    const ConfigJson json = config_of("gpt_oss");
    const Family* family = find_family(json.text("model_type"));
    ASSERT_NE(family, nullptr);
    try {
        family->read_config(json);
        FAIL() << "read";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(error.what()).find("mixtures of experts"), std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace evenkeel::hugging_face
