// Models of others compute here what they compute in `transformers`: its logits for tiny random models of each family
// (tests/fixtures/hugging_face/make_fixtures.py), on one rank and cut over several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>

#include "framework/data/token_file.h"
#include "framework/storage/safetensors.h"
#include "model/hugging_face/folder.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using hugging_face::Folder;

constexpr double kTolerance = 1e-4;
const std::string kFixtures = EVENKEEL_HUGGING_FACE_DIR;

std::string folder_of(const std::string& name) { return kFixtures + "/" + name; }
std::string logits_of(const std::string& name) { return folder_of(name) + ".safetensors"; }

// This rank's part of the logits that transformers computed: [N, T, V/P].
Tensor wanted_logits(const ProcessGrid& grid, const std::string& name) {
    const Tensor all = SafetensorsReader(logits_of(name)).read("logits");
    const std::int64_t columns = all.size(2) / grid.tp_size();
    return all.slice(2, grid.tp_rank() * columns, (grid.tp_rank() + 1) * columns).contiguous();
}

struct Worst {
    double difference = 0.0;
    std::int64_t at = 0;
    float got = 0.0f, want = 0.0f;
};

Worst worst_of(const Tensor& got, const Tensor& want) {
    check_shape("test", "logits", got, want.shape());
    Worst worst;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
        const float a = got.data<float>()[i], b = want.data<float>()[i];
        const double difference = std::abs(static_cast<double>(a) - b);
        if (difference <= worst.difference) continue;  // not for NaN
        worst = {difference, i, a, b};
    }
    return worst;
}

Tensor logits(const ProcessGrid& grid,
              const ModelConfig& config,
              const Folder& folder,
              const TensorSource& weights) {
    ModelConfig fp32 = config;
    fp32.type = ComputeType::kFp32;
    fp32.telemetry = false;
    LanguageModel model(grid, fp32, 1);
    model.load_weights(weights);
    return model.local_logits(read_token_file(
        logits_of(std::filesystem::path(folder.origin()).filename()), config.vocab_size));
}

class HuggingFaceLogits : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(,
                         HuggingFaceLogits,
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

TEST_P(HuggingFaceLogits, AreThoseOfTransformers) {
    const std::string name = GetParam();
    const Folder folder(folder_of(name));
    const auto heads = folder.config().attention.num_heads;
    for (const auto& shape : testing::grid_shapes()) {
        if (heads % shape.tensor != 0) continue;
        const ProcessGrid grid = testing::make_grid(shape);
        const Worst worst =
            worst_of(logits(grid, folder.config(), folder, folder), wanted_logits(grid, name));
        EXPECT_LE(worst.difference, kTolerance)
            << testing::name_of(grid) << ": element " << worst.at << " of this rank: got "
            << worst.got << ", want " << worst.want;
        if (testing::world().rank() == 0) {
            std::cout << name << ", " << testing::name_of(grid) << ": worst difference "
                      << worst.difference << "\n";
        }
    }
}

// A folder's tensors for another configuration than its own, put together whole.
class Rearranged : public TensorSource {
  public:
    Rearranged(const Folder& folder, const ModelConfig& config) : folder_(folder) {
        for (const hugging_face::TensorMap& map : folder.family().tensors(config)) {
            maps_.emplace(map.ours, map);
        }
    }
    std::string origin() const override { return folder_.origin(); }
    std::vector<std::string> names() const override {
        std::vector<std::string> names;
        for (const auto& [name, map] : maps_) names.push_back(name);
        return names;
    }
    bool contains(const std::string& name) const override { return maps_.count(name) != 0; }
    Shape shape(const std::string& name) const override { return maps_.at(name).shape; }
    DType dtype(const std::string&) const override { return DType::kFloat32; }
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override {
        const hugging_face::TensorMap& map = maps_.at(name);
        const Tensor whole = Tensor::uninitialized(map.shape, DType::kFloat32);
        float* to = whole.data<float>();
        for (const auto& piece : map.pieces) {
            const std::string& theirs = map.theirs[piece.theirs].name;
            const Tensor from =
                Tensor::uninitialized(map.theirs[piece.theirs].shape, DType::kFloat32);
            folder_.shards().file_of(theirs).read(theirs, from);
            to = std::copy_n(from.data<float>() + piece.begin, piece.count, to);
        }
        out.copy_from(whole.slice(dim, begin, end));
    }

  private:
    const Folder& folder_;
    std::map<std::string, hugging_face::TensorMap> maps_;
};

TEST(HuggingFaceFixtures, ComputeTheSameInTheOtherRopeLayoutIfRowsBiasesAndGainsMoveAlong) {
    const testing::SoloGrid solo;
    // Biases; gains of all heads; parts of heads that turn, gains of each; of the full width; from interleaved.
    for (const char* name : {"qwen2", "qwen3", "stablelm_parallel", "olmo2", "cohere"}) {
        const Folder folder(folder_of(name));
        ModelConfig config = folder.config();
        RopeLayout& layout = config.attention.rope.layout;
        layout =
            layout == RopeLayout::kHalfSplit ? RopeLayout::kInterleaved : RopeLayout::kHalfSplit;
        const Tensor want = wanted_logits(solo.grid, name);
        const Rearranged moved(folder, config);
        EXPECT_LE(worst_of(logits(solo.grid, config, folder, moved), want).difference, kTolerance)
            << name;
        EXPECT_GT(worst_of(logits(solo.grid, config, folder, folder), want).difference,
                  100 * kTolerance)
            << name << ": nothing moved";
    }
}

// What a fixture is to show must show: without it the logits are others by far.
struct Change {
    const char* fixture;
    const char* what;
    void (*change)(ModelConfig& config);
};
constexpr Change kChanges[] = {
    {"llama_scaled", "scaling",
     [](ModelConfig& c) { c.attention.rope.scaling = RopeConfig::Scaling::kNone; }},
    {"qwen2", "yarn", [](ModelConfig& c) { c.attention.rope.attention_factor = 1.0; }},
    {"mistral", "window", [](ModelConfig& c) { c.attention.window = 0; }},
    {"mistral", "width of the window", [](ModelConfig& c) { c.attention.window += 1; }},
    {"gemma3_text", "window", [](ModelConfig& c) { c.attention.window += 1; }},
    {"gemma3_text", "order of layers", [](ModelConfig& c) { c.global_interval = 3; }},
    {"gemma3_text", "rotation of layers with a window",
     [](ModelConfig& c) { c.local_rope_theta = 0.0; }},
    {"gemma3_text", "scale of the logits", [](ModelConfig& c) { c.attention.softmax_scale = 0.0; }},
    {"gemma3_text", "scale of the embedding", [](ModelConfig& c) { c.embedding_scale = 1.0; }},
    {"stablelm", "part that turns", [](ModelConfig& c) { c.attention.rope.rotary_fraction = 0.5; }},
    {"cohere", "layout of the rotation",
     [](ModelConfig& c) { c.attention.rope.layout = RopeLayout::kHalfSplit; }},
    {"cohere", "scale of the logits", [](ModelConfig& c) { c.logit_scale = 0.5; }},
    {"olmo2", "scope of the norm",
     [](ModelConfig& c) { c.attention.qk_norm.scope = QkNormConfig::Scope::kHead; }},
    {"evenkeel", "softcap", [](ModelConfig& c) { c.attention.softcap = 0.0; }},
    {"evenkeel", "offset of gains", [](ModelConfig& c) { c.norm.gain_offset = 0.4; }},
    {"evenkeel_parallel", "sink of 0",
     [](ModelConfig& c) { c.attention.sink = AttentionConfig::Sink::kNone; }},
    {"llama_gqa", "eps", [](ModelConfig& c) { c.norm_eps = 1e-2; }},
};

TEST(HuggingFaceFixtures, WouldShowEachOfTheseSettingsGotWrong) {
    const testing::SoloGrid solo;
    for (const Change& change : kChanges) {
        const Folder folder(folder_of(change.fixture));
        ModelConfig config = folder.config();
        change.change(config);
        const Worst worst = worst_of(logits(solo.grid, config, folder, folder),
                                     wanted_logits(solo.grid, change.fixture));
        EXPECT_GT(worst.difference, 10 * kTolerance) << change.fixture << ": " << change.what;
    }
}

}  // namespace
}  // namespace evenkeel
