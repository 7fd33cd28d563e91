// The commands of docs/import_export.md and docs/retrofit.md, as a user types them: a hot model of someone else's gets
// QK-norm and is trained, on a text or on tokens, and what is exported computes what was trained.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "tests/launch/command_line.h"
#include "tests/support/compare.h"

namespace evenkeel::testing {
namespace {

// A Hugging Face folder of a model of bytes without QK-norm, whose logits are 16 times what they were trained to be.
void make_hot_folder(const TinyRun& tiny, const std::string& folder) {
    const Outcome trained = run_evenkeel(
        tiny.train("--set model.method=plain --set model.type=fp32 --set trainer.steps=8"));
    ASSERT_EQ(trained.status, 0) << trained.output;
    const Outcome exported = run_evenkeel("export " + tiny.run + " " + folder + " --family llama");
    ASSERT_EQ(exported.status, 0) << exported.output;
    const std::string file = folder + "/model.safetensors";
    std::vector<std::pair<std::string, Tensor>> tensors;
    {
        const SafetensorsReader reader(file);
        for (const TensorInfo& info : reader.tensors()) {
            const Tensor tensor = reader.read(info.name);
            ASSERT_EQ(tensor.dtype(), DType::kFloat32);
            if (info.name.find("q_proj") != std::string::npos ||
                info.name.find("k_proj") != std::string::npos) {
                std::for_each(tensor.data<float>(), tensor.data<float>() + tensor.numel(),
                              [](float& w) { w *= 4.0f; });
            }
            tensors.emplace_back(info.name, tensor);
        }
    }
    write_safetensors(file, tensors, {{"format", "pt"}});
}

// The text's bytes as tokens of two bytes each, without a header.
void write_tokens(const std::string& text, const std::string& file) {
    std::ofstream tokens(file, std::ios::binary);
    for (const char byte : read_file(text)) {
        tokens.put(byte);
        tokens.put('\0');
    }
}

struct Sequence {
    int ranks;
    bool tokens;
};

class RetrofitSequenceTest : public ::testing::TestWithParam<Sequence> {};

TEST_P(RetrofitSequenceTest, FromAHotModelToOneWithTheNormThatTheUsualToolsRead) {
    const TinyRun tiny;
    const auto path = [&](const char* name) { return tiny.directory.file(name); };
    make_hot_folder(tiny, path("theirs"));
    if (HasFatalFailure()) return;
    const Tensor ids = Tensor::uninitialized({2, 24}, DType::kInt32);
    for (int i = 0; i < 48; ++i) ids.data<std::int32_t>()[i] = 32 + i * 37 % 90;
    write_safetensors(path("tokens"), {{"tokens", ids}});

    std::string data = tiny.text;
    if (GetParam().tokens) {
        data = path("tokens.bin");
        write_tokens(tiny.text, data);
    }

    const std::string program = concat(
        "OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 ",
        EVENKEEL_MPIEXEC, " -np ", GetParam().ranks, " ", EVENKEEL_PROGRAM, " ");
    for (const std::string& command :
         {"import " + path("theirs") + " " + path("imported"),
          "retrofit --model " + path("imported") + " --data " + data + " --out " + path("normed") +
              " --anneal 3 --tokens 256 --set trainer.steps=6 --set trainer.batch_size=2 "
              "--set schedule.peak_lr=3e-3 "
              "--set trainer.micro_batch_size=2 --set trainer.eval_sequences=4",
          "train --config " + path("normed/config.json"),
          "export " + path("normed/continued") + " " + path("exported") + " --remote-code",
          "eval " + path("exported") + " --set data.path=" + data +
              " --set trainer.eval_sequences=4"}) {
        const Outcome outcome = run_command(program + command, 110);
        ASSERT_EQ(outcome.status, 0) << command << "\n" << outcome.output;
    }
    // What was trained, and what was exported of it, on one rank.
    for (const char* name : {"normed/continued", "exported", "theirs"}) {
        std::string file = path(name) + "_logits";
        const Outcome outcome = run_evenkeel("eval --model " + path(name) + " --tokens " +
                                             path("tokens") + " --logits " + file);
        ASSERT_EQ(outcome.status, 0) << outcome.output;
    }
    const auto logits = [&](const char* name) {
        return SafetensorsReader(path(name) + "_logits").read("logits");
    };
    const Tensor trained = logits("normed/continued");
    EXPECT_EQ(trained.numel(), 2 * 24 * 256);
    EXPECT_TRUE(same_bits(logits("exported"), trained));
    EXPECT_FALSE(near(logits("theirs"), trained, 1e-2, 1e-2)) << "nothing was trained";
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndData,
    RetrofitSequenceTest,
    ::testing::Values(Sequence{1, false}, Sequence{2, false}, Sequence{2, true}),
    [](const auto& info) {
        return concat("np", info.param.ranks, info.param.tokens ? "_tokens" : "_text");
    });

}  // namespace
}  // namespace evenkeel::testing
