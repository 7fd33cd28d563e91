// Vocabularies that the tensor-parallel ranks do not divide, and smaller than their number, against one process:
// ranks then hold parts of different length, or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "framework/optimizer/adamw.h"
#include "framework/storage/state_shard.h"
#include "model/generate.h"
#include "model/hugging_face/export.h"
#include "model/hugging_face/folder.h"
#include "model/method.h"
#include "tests/support/devices.h"
#include "tests/support/sharded_models.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::distance;
using testing::gather;
using testing::random_batch;
using testing::same_bits;
using testing::SharedDirectory;
using testing::world;

struct Variant {
    const char* name;
    void (*apply)(ModelConfig&);
};
const Variant kVariants[] = {
    {"untied", [](ModelConfig&) {}},
    {"tied", [](ModelConfig& c) { c.tied_embeddings = true; }},
    {"nGPT", [](ModelConfig& c) { apply_method("ngpt", c); }},
};

// One rank by itself on a device.
struct Solo {
    std::unique_ptr<Communicator> world = make_single_communicator();
    ProcessGrid grid;
    explicit Solo(Device device) : grid(*world, ParallelConfig{}, device) {}
};

class UnevenVocabularyTest : public ::testing::TestWithParam<std::tuple<std::int64_t, Device>> {
  protected:
    UnevenVocabularyTest() : grid_(world(), parallel(), device_), solo_(device_) {}
    static ParallelConfig parallel() {
        ParallelConfig config;
        config.tensor_parallel = world().size();
        config.data_parallel = 1;
        config.communication = Communication::kStaged;
        return config;
    }
    // Heads for up to four ranks.
    ModelConfig model_of(const Variant& variant) const {
        ModelConfig config = testing::tiny_model();
        config.vocab_size = std::get<0>(GetParam());
        config.attention.num_heads = config.attention.num_kv_heads = world().size();
        if (device_ == Device::kCuda) {
            config.type = ComputeType::kBf16;
            config.num_layers = 1;
            config.attention.head_dim = 64;
            config.width = 64;
        }
        variant.apply(config);
        return config;
    }
    // Two micro-batches and an update; loss and squared norm.
    std::vector<double> step(LanguageModel& model, int step) {
        std::vector<Batch> batches;
        for (int i = 0; i < 2; ++i) {
            batches.push_back(random_batch(2, device_ == Device::kCpu ? 13 : 5,
                                           model.config().vocab_size,
                                           static_cast<std::uint64_t>(2 * step + i)));
        }
        const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, device_);
        compute_gradients(model, batches, numbers);
        adamw_step(model.buckets(), {}, 1e-3, 1.0, numbers, step + 1);
        model.finish_update();
        const Tensor read = numbers.to(Device::kCpu);
        return {read.data<double>()[0], read.data<double>()[1]};
    }
    Tensor whole(const Parameter& parameter, Tensor Parameter::*member) {
        return gather(grid_host(), parameter, (parameter.*member).to(Device::kCpu));
    }
    // gather() sums on the CPU.
    const ProcessGrid& grid_host() {
        if (device_ == Device::kCpu) return grid_;
        if (host_ == nullptr) host_ = std::make_unique<ProcessGrid>(world(), parallel());
        return *host_;
    }

    const Device device_ = std::get<1>(GetParam());
    ProcessGrid grid_;
    Solo solo_;
    std::unique_ptr<ProcessGrid> host_;
};

TEST_P(UnevenVocabularyTest, InitialWeightsAreThoseOfOneProcess) {
    if (device_ == Device::kCuda) GTEST_SKIP() << "made on the CPU";
    for (const Variant& variant : kVariants) {
        const ModelConfig config = model_of(variant);
        LanguageModel many(grid_, config, 1), one(solo_.grid, config, 1);
        for (std::size_t i = 0; i < one.parameters().size(); ++i) {
            const Parameter& parameter = *many.parameters()[i];
            EXPECT_EQ(parameter.global_shape, one.parameters()[i]->global_shape);
            if (parameter.name != "embedding" && parameter.name.rfind("output", 0) != 0) continue;
            EXPECT_TRUE(same_bits(whole(parameter, &Parameter::master),
                                  one.parameters()[i]->master.to(Device::kCpu)))
                << variant.name << ", " << parameter.name;
        }
    }
}

TEST_P(UnevenVocabularyTest, StepsEqualThoseOfOneProcess) {
    for (const Variant& variant : kVariants) {
        SCOPED_TRACE(concat(variant.name, ", ", world().size(), " ranks"));
        const ModelConfig config = model_of(variant);
        LanguageModel many(grid_, config, 1), one(solo_.grid, config, 1);
        const bool exact = config.type == ComputeType::kFp32;
        // Updates make rounding errors larger.
        const double tolerance[] = {exact ? 2e-5 : 0.1, 2e-4};
        for (int i = 0; i < (exact ? 2 : 1); ++i) {
            const auto got = step(many, i), want = step(one, i);
            EXPECT_NEAR(got[0], want[0], (exact ? 2e-6 : 2e-2) * want[0] + 1e-12);
            EXPECT_NEAR(got[1], want[1], tolerance[i] * want[1] + 1e-12);
            for (std::size_t p = 0; p < one.parameters().size(); ++p) {
                const Parameter& parameter = *many.parameters()[p];
                EXPECT_LT(distance(whole(parameter, &Parameter::grad),
                                   one.parameters()[p]->grad.to(Device::kCpu)),
                          tolerance[i])
                    << parameter.name;
            }
        }
        if (!exact) continue;
        const Batch batch = random_batch(2, 9, config.vocab_size, 9);
        EXPECT_NEAR(many.evaluate(batch), one.evaluate(batch), 1e-4);
    }
}

// argmax, sampling and probabilities read whole rows of logits: V of them, each the one that one process has.
TEST_P(UnevenVocabularyTest, DecodedLogitsAreThoseOfTheVocabularyAlone) {
    for (const Variant& variant : kVariants) {
        const ModelConfig config = model_of(variant);
        LanguageModel many(grid_, config, 1), one(solo_.grid, config, 1);
        const Tensor tokens = random_batch(2, 5, config.vocab_size, 3).tokens;
        const auto state = many.start_decoding(2, 8), state_of_one = one.start_decoding(2, 8);
        const Tensor got = many.decode(*state, tokens);
        const Tensor want = one.decode(*state_of_one, tokens);
        check_shape("test", "logits", got, {2, config.vocab_size});
        // Of one logit alone: a few roundings of bf16.
        EXPECT_LT(distance(got, want), config.type == ComputeType::kFp32 ? 1e-4 : 0.05)
            << variant.name;
    }
}

TEST_P(UnevenVocabularyTest, CheckpointsAreThoseOfOneProcessAndReadAtEverySize) {
    for (const Variant& variant : kVariants) {
        SCOPED_TRACE(variant.name);
        const SharedDirectory directory;
        const ModelConfig config = model_of(variant);
        LanguageModel many(grid_, config, 1);
        step(many, 0);
        many.save_state(directory.path());
        // Read by one process, and by the ranks into other weights.
        LanguageModel one(solo_.grid, config, 2), again(grid_, config, 3);
        one.load_state(directory.path());
        again.load_state(directory.path());
        for (std::size_t i = 0; i < one.parameters().size(); ++i) {
            const Parameter &of_many = *many.parameters()[i], &of_one = *one.parameters()[i];
            for (Tensor Parameter::*member :
                 {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
                EXPECT_TRUE(same_bits(whole(of_many, member), (of_one.*member).to(Device::kCpu)))
                    << of_one.name;
                EXPECT_TRUE(same_bits((again.parameters()[i]->*member).to(Device::kCpu),
                                      (of_many.*member).to(Device::kCpu)))
                    << of_one.name;
            }
        }
        // What one process writes is the same.
        const SharedDirectory of_one;
        const std::string theirs = of_one.path(concat("rank", world().rank()));
        std::filesystem::create_directory(theirs);
        one.save_state(theirs);
        const auto a = open_state(directory.path(), "model");
        const auto b = open_state(theirs, "model");
        EXPECT_EQ(a->names().size(), b->names().size());
        for (const std::string& name : b->names()) {
            const Shape shape = b->shape(name);
            EXPECT_EQ(a->shape(name), shape) << name;
            const Tensor of_a = Tensor::uninitialized(shape, DType::kFloat32);
            const Tensor of_b = Tensor::uninitialized(shape, DType::kFloat32);
            a->read_slice(name, 0, 0, shape[0], of_a);
            b->read_slice(name, 0, 0, shape[0], of_b);
            EXPECT_TRUE(same_bits(of_a, of_b)) << name;
        }
    }
}

TEST_P(UnevenVocabularyTest, ExportedFoldersHoldTheVocabularyAndAreReadAtEverySize) {
    if (device_ == Device::kCuda) GTEST_SKIP() << "of checkpoints, which know of no device";
    for (const Variant& variant : {kVariants[0], kVariants[1]}) {
        SCOPED_TRACE(variant.name);
        const SharedDirectory directory;
        const ModelConfig config = model_of(variant);
        LanguageModel many(grid_, config, 1);
        many.save_state(directory.path());
        const std::string folder = directory.path("exported");
        if (world().rank() == 0) {
            std::filesystem::create_directory(folder);
            const auto weights = open_state(directory.path(), "model");
            const auto fit = hugging_face::fit_any("evenkeel", config, *weights, {});
            hugging_face::write_folder(*weights, fit, {}, folder);
        }
        world().barrier();
        const hugging_face::Folder imported(folder);
        EXPECT_EQ(imported.config().vocab_size, config.vocab_size);
        LanguageModel again(grid_, config, 2);
        again.load_weights(imported);
        for (std::size_t i = 0; i < many.parameters().size(); ++i) {
            EXPECT_TRUE(same_bits(again.parameters()[i]->master.to(Device::kCpu),
                                  many.parameters()[i]->master.to(Device::kCpu)))
                << many.parameters()[i]->name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         UnevenVocabularyTest,
                         ::testing::Combine(::testing::Values(257, 250, 1),
                                            ::testing::ValuesIn(testing::test_devices())),
                         [](const auto& test) {
                             return concat(name_of(std::get<1>(test.param)), "_",
                                           std::get<0>(test.param));
                         });

}  // namespace
}  // namespace evenkeel
