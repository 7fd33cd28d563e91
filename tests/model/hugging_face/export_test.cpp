// Hugging Face folders written from sources of this project's parameters.
#include "model/hugging_face/export.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "framework/storage/staged_directory.h"
#include "model/hugging_face/folder.h"
#include "model/method.h"
#include "tests/model/hugging_face/test_folder.h"
#include "tests/support/compare.h"
#include "tests/support/tiny_model.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;
using testing::same_bits;
using testing::TemporaryDirectory;
using testing::TestFolder;
using testing::thrown;

// What a model of that configuration has in memory.
class MemorySource : public TensorSource {
  public:
    explicit MemorySource(const ModelConfig& config, std::uint64_t seed = 1) {
        ModelConfig wide = config;
        wide.type = ComputeType::kFp32;
        LanguageModel model(solo_.grid, wide, seed);
        testing::randomize_gains(model);
        for (const Parameter* parameter : model.parameters()) {
            names_.push_back(parameter->name);
            tensors_[parameter->name] = parameter->master.clone();
        }
    }
    std::string origin() const override { return "memory"; }
    std::vector<std::string> names() const override { return names_; }
    bool contains(const std::string& name) const override { return tensors_.count(name) != 0; }
    Shape shape(const std::string& name) const override { return tensors_.at(name).shape(); }
    DType dtype(const std::string& name) const override { return tensors_.at(name).dtype(); }
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override {
        if (reads_until_end_ >= 0 && reads_until_end_-- == 0) at_end_();
        out.copy_from(tensors_.at(name).slice(dim, begin, end).contiguous().to(out.dtype()));
    }

    Tensor& tensor(const std::string& name) { return tensors_.at(name); }
    void add(const std::string& name, const Tensor& tensor) {
        names_.push_back(name);
        tensors_[name] = tensor;
    }
    void after(int reads, void (*action)()) {
        reads_until_end_ = reads;
        at_end_ = action;
    }

  private:
    testing::SoloGrid solo_;
    std::vector<std::string> names_;
    std::map<std::string, Tensor> tensors_;
    mutable int reads_until_end_ = -1;
    void (*at_end_)() = nullptr;
};

ModelConfig plain_model() {
    ModelConfig config = testing::tiny_model();
    config.attention.qk_norm.kind = QkNormKind::kNone;
    return config;
}
ModelConfig normed_model(QkNormConfig::Gain gain) {
    ModelConfig config = testing::tiny_model();
    config.attention.qk_norm.kind = QkNormKind::kRms;
    config.attention.qk_norm.gain = gain;
    return config;
}
constexpr auto kPerHead = QkNormConfig::Gain::kPerHeadChannel;
constexpr auto kShared = QkNormConfig::Gain::kSharedChannel;

// Every head's gains as the first's.
void share_gains(MemorySource& source) {
    for (const std::string& name : source.names()) {
        if (!name.ends_with("_gain")) continue;
        const Tensor& gain = source.tensor(name);
        for (std::int64_t head = 1; head < gain.size(0); ++head) {
            gain.slice(0, head, head + 1).copy_from(gain.slice(0, 0, 1));
        }
    }
}

TEST(HuggingFaceExport, TheFirstFamilyThatCanHoldAModelIsTaken) {
    const MemorySource plain(plain_model());
    EXPECT_STREQ(fit_any("", plain_model(), plain, {}).family->name, "llama");
    const MemorySource shared(normed_model(kShared));
    EXPECT_STREQ(fit_any("", normed_model(kShared), shared, {}).family->name, "qwen3");
    ModelConfig biased = plain_model();
    biased.attention.qkv_bias = true;
    const MemorySource with_bias(biased);
    EXPECT_STREQ(fit_any("", biased, with_bias, {}).family->name, "qwen2");
}

TEST(HuggingFaceExport, AdvisesItsOwnFamilyOnlyForWhatThatCanHold) {
    const auto refusal = [](const ModelConfig& config) {
        const MemorySource source(config);
        return thrown([&] { fit_any("", config, source, {}); });
    };
    const char* const writes = "--remote-code writes one of its own";
    const std::string per_head = refusal(normed_model(kPerHead));
    EXPECT_NE(per_head.find(writes), std::string::npos) << per_head;
    for (const char* method : {"ngpt", "sigma_reparam"}) {
        ModelConfig config = testing::tiny_model();
        apply_method(method, config);
        const std::string message = refusal(config);
        EXPECT_EQ(message.find(writes), std::string::npos) << message;
        EXPECT_NE(message.find("nor can the one of its own"), std::string::npos) << message;
    }
}

TEST(HuggingFaceExport, GainsForEachHeadGoIntoAFamilyWithOneForAllOnlyWhenTheyAreEqual) {
    MemorySource source(normed_model(kPerHead));
    const std::string message =
        thrown([&] { fit(*find_family("qwen3"), normed_model(kPerHead), source, {}); });
    EXPECT_NE(message.find("layers.0.attention.q_gain: element [1, 0] differs from that of another "
                           "head, and \"model.layers.0.self_attn.q_norm.weight\" has one for all"),
              std::string::npos)
        << message;
    const std::string none = thrown([&] { fit_any("", normed_model(kPerHead), source, {}); });
    for (const char* part : {"no family", "--remote-code", "\n  qwen3: ", "\n  llama: ",
                             "--family NAME has the reason of each"}) {
        EXPECT_NE(none.find(part), std::string::npos) << part << " is not in " << none;
    }
    share_gains(source);
    const Fit found = fit_any("", normed_model(kPerHead), source, {});
    EXPECT_STREQ(found.family->name, "qwen3");
    TemporaryDirectory files;
    write_folder(source, found, {}, files.path());
    const Folder folder(files.path());
    EXPECT_EQ(folder.config().attention.qk_norm.gain, kShared);
    const Tensor gain = Tensor::zeros({32}, DType::kFloat32);
    folder.read_slice("layers.1.attention.k_gain", 0, 0, 32, gain);
    EXPECT_TRUE(same_bits(
        gain, source.tensor("layers.1.attention.k_gain").slice(0, 1, 2).contiguous().view({32})));
}

TEST(HuggingFaceExport, SaysWhatAFamilyCantSay) {
    ModelConfig config = plain_model();
    config.attention.softcap = 30.0;
    const MemorySource source(config);
    const std::string message = thrown([&] { fit(*find_family("llama"), config, source, {}); });
    EXPECT_NE(message.find("softcap"), std::string::npos) << message;
    const MemorySource normed(normed_model(kShared));
    const std::string norm =
        thrown([&] { fit(*find_family("llama"), normed_model(kShared), normed, {}); });
    EXPECT_NE(norm.find("qk_norm"), std::string::npos) << norm;
    EXPECT_NE(thrown([&] { fit_any("mamba", config, source, {}); }).find("want one of llama"),
              std::string::npos);
}

// Rows of W_q, W_k and gains are permuted together: the model that comes back computes the same.
TEST(HuggingFaceExport, AnotherRopeLayoutIsARearrangementOfRowsAndGains) {
    ModelConfig config = normed_model(kShared);
    config.attention.rope.layout = RopeLayout::kInterleaved;
    const MemorySource source(config);
    TemporaryDirectory files;
    write_folder(source, fit(*find_family("qwen3"), config, source, {}), {}, files.path());
    const Folder folder(files.path());
    ASSERT_EQ(folder.config().attention.rope.layout, RopeLayout::kHalfSplit);
    const testing::SoloGrid solo;
    LanguageModel ours(solo.grid, config, 1), theirs(solo.grid, folder.config(), 2);
    ours.load_weights(source);
    theirs.load_weights(folder);
    const Tensor tokens = testing::random_batch(2, 24, config.vocab_size, 1).tokens;
    const Tensor a = ours.local_logits(tokens), b = theirs.local_logits(tokens);
    float worst = 0.0f, largest = 0.0f;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        worst = std::max(worst, std::abs(a.data<float>()[i] - b.data<float>()[i]));
        largest = std::max(largest, std::abs(a.data<float>()[i]));
    }
    EXPECT_LT(worst, 1e-4f * largest);
    // Without the rearrangement of the gains it would not.
    const Tensor gain = testing::find(theirs, "layers.0.attention.q_gain").value;
    EXPECT_FALSE(same_bits(gain, source.shape("layers.0.attention.q_gain") == gain.shape()
                                     ? testing::find(ours, "layers.0.attention.q_gain").value
                                     : gain));
}

TEST(HuggingFaceExport, ShardsAreFilledInOrderAndALargerTensorGetsItsOwn) {
    const MemorySource source(plain_model());
    TemporaryDirectory files;
    const Fit found = fit_any("", plain_model(), source, {});
    const FolderSummary summary =
        write_folder(source, found, {.dtype = {}, .shard_bytes = 20000}, files.path());
    const Shards shards(files.path());  // checks the index
    EXPECT_EQ(shards.files().size(), summary.files);
    EXPECT_EQ(shards.num_tensors(), summary.tensors);
    EXPECT_EQ(shards.bytes(), summary.bytes);
    EXPECT_GT(summary.files, 3u);
    for (std::size_t i = 0; i < summary.files; ++i) {
        char name[64];
        std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, summary.files);
        ASSERT_TRUE(fs::exists(files.file(name))) << name;
        const SafetensorsReader reader(files.file(name));
        EXPECT_EQ(reader.metadata().at("format"), "pt");
        std::uint64_t bytes = 0;
        for (const TensorInfo& info : reader.tensors()) bytes += info.end - info.begin;
        EXPECT_TRUE(bytes <= 20000 || reader.tensors().size() == 1) << name << ": " << bytes;
    }
    EXPECT_FALSE(fs::exists(files.file("model.safetensors")));
    TemporaryDirectory many;
    EXPECT_NE(thrown([&] {
                  ModelConfig deep = plain_model();
                  deep.num_layers = 60;
                  const MemorySource large(deep);
                  write_folder(large, fit_any("", deep, large, {}), {.dtype = {}, .shard_bytes = 1},
                               many.path());
              }).find("want at most 512"),
              std::string::npos);
}

TEST(HuggingFaceExport, ConvertsToTheTypeThatIsAskedForAndSaysSo) {
    const MemorySource source(plain_model());
    const Fit found = fit_any("", plain_model(), source, {});
    for (const auto& [dtype, name] :
         {std::pair{DType::kBFloat16, "bfloat16"}, std::pair{DType::kFloat16, "float16"}}) {
        TemporaryDirectory files;
        write_folder(source, found, {.dtype = dtype}, files.path());
        const Folder folder(files.path());
        EXPECT_EQ(folder.json().text("torch_dtype"), name);
        const Tensor got = Tensor::zeros({32}, dtype);
        folder.read_slice("final_norm", 0, 0, 32, got);
        Tensor want = Tensor::zeros({32}, DType::kFloat32);
        source.read_slice("final_norm", 0, 0, 32, want);
        EXPECT_TRUE(same_bits(got, want.to(dtype)));
    }
}

TEST(HuggingFaceExport, RefusesWhatIsTooLargeForHalves) {
    MemorySource source(plain_model());
    source.tensor("layers.1.attention.wv").data<float>()[3 * 32 + 1] = -70000.0f;
    TemporaryDirectory files;
    const Fit found = fit_any("", plain_model(), source, {});
    EXPECT_NE(thrown([&] {
                  write_folder(source, found, {.dtype = DType::kFloat16}, files.path());
              }).find("layers.1.attention.wv: element [3, 1] is -70000, too large for fp16"),
              std::string::npos);
    EXPECT_NO_THROW(write_folder(source, found, {.dtype = DType::kBFloat16}, files.path()));
}

TEST(HuggingFaceExport, ATensorThatIsNotFiniteLeavesNoTarget) {
    MemorySource source(plain_model());
    source.tensor("layers.1.attention.wo").data<float>()[130] =
        std::numeric_limits<float>::quiet_NaN();
    TemporaryDirectory files;
    const Fit found = fit_any("", plain_model(), source, {});
    const std::string message = thrown([&] {
        StagedDirectory staged(files.file("out"));
        write_folder(source, found, {}, staged.path());
        staged.commit();
    });
    EXPECT_NE(message.find("layers.1.attention.wo\": element [1, 2]"), std::string::npos)
        << message;
    EXPECT_TRUE(fs::is_empty(files.path()));
}

TEST(HuggingFaceExport, AProcessKilledInTheMiddleLeavesNoTarget) {
    MemorySource source(plain_model());
    const Fit found = fit_any("", plain_model(), source, {});
    source.after(9, [] { ::kill(::getpid(), SIGKILL); });
    TemporaryDirectory files;
    const pid_t child = ::fork();
    if (child == 0) {
        StagedDirectory staged(files.file("out"));
        write_folder(source, found, {.dtype = {}, .shard_bytes = 20000}, staged.path());
        staged.commit();
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it was not killed in the middle";
    EXPECT_FALSE(fs::exists(files.file("out")));
    EXPECT_FALSE(fs::is_empty(files.path())) << "nothing was being written";
    MemorySource again(plain_model());
    StagedDirectory staged(files.file("out"));
    write_folder(again, found, {}, staged.path());
    staged.commit();
    EXPECT_NO_THROW(Folder(files.file("out")));
}

TEST(HuggingFaceExport, RefusesAModelWhoseNormIsComingIn) {
    ModelConfig config = normed_model(kShared);
    config.attention.qk_norm.anneal_steps = 10;
    MemorySource source(normed_model(kShared));
    source.add("qk_norm_anneal", Tensor::full({1}, 9.0f, DType::kFloat32));
    EXPECT_NE(thrown([&] {
                  fit_any("", config, source, {});
              }).find("its QK-norm is coming in, after 9 of 10 steps"),
              std::string::npos);
    source.tensor("qk_norm_anneal").fill(10.0f);
    EXPECT_STREQ(fit_any("", config, source, {}).family->name, "qwen3");
}

TEST(HuggingFaceExport, RefusesATensorThatHasNoPlace) {
    MemorySource source(plain_model());
    source.add("layers.0.surprise", Tensor::zeros({4}, DType::kFloat32));
    EXPECT_NE(thrown([&] { fit_any("", plain_model(), source, {}); }).find("layers.0.surprise"),
              std::string::npos);
}

TEST(HuggingFaceExport, KeepsKeysThatItDoesNotKnow) {
    TestFolder folder;
    folder.write_single();
    const Folder source(folder.path());
    ModelConfig config = source.config();
    // As it came: not a byte of the configuration changes.
    EXPECT_EQ(fit_any("", config, source, source.json()).json.to_text(), source.json().to_text());
    config.attention.rope.theta = 5e5;
    const ConfigJson json = fit_any("", config, source, source.json()).json;
    EXPECT_EQ(json.number("rope_theta"), 5e5);
    EXPECT_EQ(json.raw("an_unknown_key"), source.json().raw("an_unknown_key"));
}

// Import and export hold one tensor at a time, whatever the model's size.
TEST(HuggingFaceExport, MemoryStaysBelowTheLargestShardAndOneTensor) {
    TestFolder folder(DType::kBFloat16);
    folder.write_shards(3);
    const Folder source(folder.path());
    const Fit found = fit_any("", source.config(), source, source.json());
    std::size_t largest = 0;
    for (const auto& [name, tensor] : folder.tensors) largest = std::max(largest, tensor.bytes());
    TemporaryDirectory files;
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    Buffer::reset_peak(Device::kCpu);
    write_folder(source, found, {}, files.path());
    EXPECT_LE(Buffer::peak_bytes(Device::kCpu) - before, largest);
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, GivesTheSameTensorsAndConfiguration) {
    const Folder source(std::string(EVENKEEL_HUGGING_FACE_DIR) + "/" + GetParam());
    const Fit found = fit_any("", source.config(), source, source.json());
    EXPECT_STREQ(found.family->name, source.family().name);
    TemporaryDirectory files;
    write_folder(source, found, {.dtype = {}, .shard_bytes = 8000}, files.path());
    const Folder again(files.path());
    EXPECT_EQ(again.json().to_text(), source.json().to_text());
    ASSERT_EQ(again.shards().num_tensors(), source.shards().num_tensors());
    for (const std::string& name : source.shards().names()) {
        const TensorInfo& want = source.shards().info(name);
        const TensorInfo& got = again.shards().info(name);
        EXPECT_EQ(got.dtype, want.dtype) << name;
        ASSERT_EQ(got.shape, want.shape) << name;
        EXPECT_TRUE(same_bits(again.shards().file_of(name).read(name),
                              source.shards().file_of(name).read(name)))
            << name;
    }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         RoundTrip,
                         ::testing::Values("llama",
                                           "llama_gqa",
                                           "llama_scaled",
                                           "mistral",
                                           "qwen2",
                                           "qwen3",
                                           "olmo2",
                                           "gemma3_text",
                                           "stablelm",
                                           "stablelm_parallel",
                                           "cohere"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace evenkeel::hugging_face
