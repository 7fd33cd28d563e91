// evenkeel eval --tokens --logits: what a model computes, for anyone to compare.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include "framework/data/token_file.h"
#include "framework/json.h"
#include "framework/storage/safetensors.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

const std::string kFixtures = std::string(EVENKEEL_SOURCE_DIR) + "/tests/fixtures/hugging_face/";

double worst_difference(const std::string& path, const std::string& wanted) {
    const Tensor got = SafetensorsReader(path).read("logits");
    const Tensor want = SafetensorsReader(wanted).read("logits");
    EXPECT_EQ(got.shape(), want.shape());
    EXPECT_EQ(got.dtype(), DType::kFloat32);
    double worst = 0.0;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
        const double difference = std::abs(got.data<float>()[i] - want.data<float>()[i]);
        if (!(difference <= worst)) worst = difference;
    }
    return worst;
}

class EvalLogits : public ::testing::Test {
  protected:
    std::string arguments(const std::string& model, const std::string& tokens) const {
        return "eval --model " + model + " --tokens " + tokens + " --logits " + out_;
    }
    TemporaryDirectory directory_;
    std::string out_ = directory_.file("logits.safetensors");
};

TEST_F(EvalLogits, OfAFolderAreThoseOfTransformers) {
    const Outcome outcome =
        run_evenkeel(arguments(kFixtures + "qwen3", kFixtures + "qwen3.safetensors"));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("2 sequences of 24 tokens, 64 logits each"), std::string::npos)
        << outcome.output;
    EXPECT_LE(worst_difference(out_, kFixtures + "qwen3.safetensors"), 1e-4);
}

TEST_F(EvalLogits, OfAnImportedRunAreThoseOfTransformersToo) {
    const std::string run = directory_.file("run");
    const Outcome imported = run_evenkeel("import " + kFixtures + "cohere " + run);
    ASSERT_EQ(imported.status, 0) << imported.output;
    const Outcome outcome = run_evenkeel(arguments(run, kFixtures + "cohere.safetensors"));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_LE(worst_difference(out_, kFixtures + "cohere.safetensors"), 1e-4);
}

TEST_F(EvalLogits, OfAModelThatTransformersNeedsOurCodeForAreThatCodes) {
    const std::string run = directory_.file("run"), folder = directory_.file("folder");
    ASSERT_EQ(run_evenkeel("import " + kFixtures + "evenkeel " + run).status, 0);
    const Outcome exported = run_evenkeel("export " + run + " " + folder + " --remote-code");
    ASSERT_EQ(exported.status, 0) << exported.output;
    for (const char* file : {"modeling_evenkeel.py", "configuration_evenkeel.py"}) {
        EXPECT_TRUE(std::filesystem::exists(folder + "/" + file)) << file;
    }
    const Outcome outcome = run_evenkeel(arguments(folder, kFixtures + "evenkeel.safetensors"));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_LE(worst_difference(out_, kFixtures + "evenkeel.safetensors"), 1e-4);
}

TEST_F(EvalLogits, OfIdsBeyondTheVocabularyAreRefusedAndLeaveNoFile) {
    const std::string tokens = directory_.file("tokens.safetensors");
    const Tensor ids = Tensor::zeros({1, 2}, DType::kInt32);
    ids.data<std::int32_t>()[1] = 64;
    write_safetensors(tokens, {{"tokens", ids}});
    const Outcome outcome = run_evenkeel(arguments(kFixtures + "llama", tokens));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.output.find("tokens [0, 1]: got 64, want 0 to 63"), std::string::npos)
        << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(EvalLogits, WithoutAFileForThemGiveTheLossOfNextTokens) {
    const std::string tokens = kFixtures + "qwen3.safetensors";
    const Tensor ids = read_token_file(tokens, 64);
    const Tensor logits = SafetensorsReader(tokens).read("logits");
    const std::int64_t length = logits.size(1), vocab = logits.size(2);
    double sum = 0.0;
    for (std::int64_t row = 0; row < logits.size(0) * length; ++row) {
        if (row % length == length - 1) continue;
        const float* of_row = logits.data<float>() + row * vocab;
        double exps = 0.0;
        for (std::int64_t i = 0; i < vocab; ++i) exps += std::exp(double{of_row[i]});
        const std::int32_t next = ids.data<std::int32_t>()[row + 1];
        sum += std::log(exps) - of_row[next];
    }
    const Outcome outcome = run_evenkeel("eval " + kFixtures + "qwen3 --json --tokens " + tokens);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto json = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(json["sequences"], 2);
    EXPECT_EQ(json["tokens"], 46);
    EXPECT_NEAR(json["loss"].get<double>(), sum / 46, 1e-5);
}

TEST_F(EvalLogits, OfAModelThatReadsNoBytesWantTokens) {
    const Outcome outcome = run_evenkeel("eval " + kFixtures + "llama --set data.path=" + out_);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("--tokens FILE"), std::string::npos) << outcome.output;
}

TEST_F(EvalLogits, OfNoModelAreRefusedAsUsage) {
    const Outcome outcome = run_evenkeel("eval --tokens " + kFixtures + "llama.safetensors");
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("is required"), std::string::npos) << outcome.output;
}

TEST_F(EvalLogits, WantTokens) {
    const Outcome outcome = run_evenkeel("eval " + kFixtures + "llama --logits " + out_);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("--tokens"), std::string::npos) << outcome.output;
}

// What --logits names and must not be taken away, refused before anything is computed.
TEST_F(EvalLogits, ReplaceNothingButAFileThatIsNobodyElses) {
    namespace fs = std::filesystem;
    const std::string folder = directory_.file("folder"), tokens = directory_.file("t.safetensors");
    fs::copy(kFixtures + "llama", folder, fs::copy_options::recursive);
    fs::copy_file(kFixtures + "llama.safetensors", tokens);
    const auto refused = [&](const std::string& logits, const std::string& words, int status) {
        const Outcome outcome =
            run_evenkeel("eval " + folder + " --tokens " + tokens + " --logits " + logits);
        EXPECT_EQ(outcome.status, status) << outcome.output;
        EXPECT_NE(outcome.output.find(logits + words), std::string::npos) << outcome.output;
    };
    const std::string pipe = directory_.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    refused(pipe, ": got a directory, a device or a pipe, want a file", 1);
    EXPECT_TRUE(fs::is_fifo(pipe));
    refused(directory_.path(), ": got a directory, a device or a pipe, want a file", 1);
    const auto size = fs::file_size(tokens);
    refused(tokens, ", the file of --tokens", 2);
    refused(folder + "/../t.safetensors", ", the file of --tokens", 2);
    EXPECT_EQ(fs::file_size(tokens), size);
    refused(folder + "/model.safetensors", ", among the files of the model", 2);
}

TEST_F(EvalLogits, OfWeightsThatAreNotFiniteAreRefused) {
    const std::string folder = directory_.file("folder"), file = folder + "/model.safetensors";
    std::filesystem::copy(kFixtures + "llama", folder, std::filesystem::copy_options::recursive);
    std::vector<std::pair<std::string, Tensor>> tensors;
    SafetensorsMetadata metadata;
    {
        const SafetensorsReader reader(file);
        metadata = reader.metadata();
        for (const TensorInfo& info : reader.tensors()) {
            tensors.emplace_back(info.name, reader.read(info.name));
        }
    }
    ASSERT_EQ(tensors.front().second.dtype(), DType::kFloat32);
    tensors.front().second.data<float>()[1] = NAN;
    write_safetensors(file, tensors, metadata);
    for (const std::string& end : {std::string(), " --logits " + out_}) {
        const Outcome outcome =
            run_evenkeel("eval " + folder + " --tokens " + kFixtures + "llama.safetensors" + end);
        EXPECT_EQ(outcome.status, 1) << outcome.output;
        EXPECT_NE(outcome.output.find("is NaN or infinite, want finite weights"), std::string::npos)
            << outcome.output;
    }
    EXPECT_FALSE(std::filesystem::exists(out_));
}

}  // namespace
}  // namespace evenkeel::testing
