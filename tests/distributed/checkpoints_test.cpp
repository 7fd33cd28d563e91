// Checkpoints of runs over several ranks: written at one arrangement of the ranks and read at another, bit for bit;
// and damage of every kind found by whichever rank reads the file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "framework/data/byte_dataset.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/state_shard.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/run_files.h"
#include "tests/support/sharded_models.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::same_bits;
using testing::SharedDirectory;
using testing::world;

struct Arrangement {
    std::int64_t tensor, data, zero_stage;
};

std::string name_of(const Arrangement& a) {
    return concat(a.tensor, "x", a.data, a.zero_stage == 1 ? "_zero" : "");
}

bool is_main() { return world().rank() == 0; }

// What the main rank does to files, seen by all.
template <typename F>
void on_main(F&& f) {
    world().barrier();
    if (is_main()) f();
    world().barrier();
}

class CheckpointsTest : public ::testing::Test {
  protected:
    CheckpointsTest() {
        on_main([&] { testing::write_text(files_.path("text"), 30000); });
        model_ = testing::tiny_model();
        model_.vocab_size = 256;
        model_.attention.num_heads = 8;
        model_.attention.num_kv_heads = 2;
        model_.init_std = model_.embedding_init_std = 0.05;
        trainer_.steps = 5;
        trainer_.batch_size = 8;
        trainer_.micro_batch_size = 2;
        trainer_.seq_len = 16;
        trainer_.eval_sequences = 2;
        trainer_.checkpoint_interval = 3;
        trainer_.checkpoint_keep = 0;
        schedule_.warmup_steps = 2;
        schedule_.peak_lr = 3e-3;
    }

    // Runs f(grid) on the first ranks of the world.
    template <typename F>
    void on_grid(const Arrangement& arrangement, F&& f) {
        const int ranks = static_cast<int>(arrangement.tensor * arrangement.data);
        const auto group = world().split(world().rank() < ranks ? 0 : 1);
        if (world().rank() < ranks) {
            const ProcessGrid grid(*group, {.tensor_parallel = arrangement.tensor,
                                            .data_parallel = arrangement.data,
                                            .zero_stage = arrangement.zero_stage});
            f(grid);
        }
        world().barrier();
    }
    TrainResult run(const ProcessGrid& grid, const std::string& name) {
        const ByteDataset data({files_.path("text"), 0.1}, trainer_.seq_len);
        LanguageModel model(grid, model_, static_cast<std::uint64_t>(trainer_.seed));
        trainer_.run_dir = files_.path(name);
        return train(model, data, trainer_, schedule_, {}, "{}\n");
    }
    CheckpointStore store(const std::string& name) const {
        return CheckpointStore(files_.path(name) + "/checkpoints", 0);
    }
    static CheckpointReaders readers() {
        return {world().rank(), world().size(),
                [](double value) { return world().all_reduce_scalar(value, ReduceOp::kMax); }};
    }

    SharedDirectory files_;
    ModelConfig model_;
    TrainerConfig trainer_;
    ScheduleConfig schedule_;
};

// All tensors of a checkpoint.
std::map<std::string, Tensor> contents(const std::string& checkpoint) {
    std::map<std::string, Tensor> all;
    for (const char* file : {"model", "optimizer"}) {
        const auto source = open_state(checkpoint, file);
        for (const std::string& name : source->names()) {
            const Shape shape = source->shape(name);
            const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
            source->read_slice(name, 0, 0, shape[0], tensor);
            all[name] = tensor;
        }
    }
    return all;
}

TEST_F(CheckpointsTest, EachArrangementOfRanksGoesOnFromEachOther) {
    if (world().size() != 4) GTEST_SKIP() << "needs four ranks";
    const Arrangement all[] = {{1, 1, 0}, {2, 1, 0}, {1, 2, 0}, {2, 2, 0},
                               {4, 1, 0}, {1, 2, 1}, {2, 2, 1}};
    std::map<std::string, std::vector<double>> straight;
    for (const Arrangement& one : all) {
        on_grid(one, [&](const ProcessGrid& grid) {
            straight[name_of(one)] = run(grid, name_of(one)).losses;
        });
    }
    for (const Arrangement& from : all) {
        const std::string saved = store(name_of(from)).path(3);
        const auto writers = static_cast<int>(from.tensor * (from.zero_stage == 1 ? from.data : 1));
        EXPECT_EQ(fs::exists(saved + "/" + shard_name("model", 0, writers)), true);
        for (const Arrangement& to : all) {
            const std::string name = name_of(from) + "_to_" + name_of(to);
            SCOPED_TRACE(name);
            on_main([&] {
                fs::create_directories(files_.path(name) + "/checkpoints");
                fs::copy(saved, store(name).path(3), fs::copy_options::recursive);
            });
            on_grid(to, [&](const ProcessGrid& grid) {
                LanguageModel model(grid, model_, 77);
                model.load_state(saved);
                fs::path again = files_.path(name + "_again");
                if (grid.world().rank() == 0) fs::create_directory(again);
                grid.world().barrier();
                model.save_state(again.string());
                if (grid.world().rank() == 0) {
                    const auto got = contents(again.string()), want = contents(saved);
                    ASSERT_EQ(got.size(), want.size());
                    for (const auto& [tensor, value] : want) {
                        EXPECT_TRUE(same_bits(got.at(tensor), value)) << tensor;
                    }
                }
                trainer_.resume = true;
                const std::vector<double> losses = run(grid, name).losses;
                trainer_.resume = false;
                const std::vector<double>& want = straight.at(name_of(to));
                ASSERT_EQ(losses.size(), 2u);
                for (std::size_t i = 0; i < 2; ++i) {
                    if (name_of(from) == name_of(to)) {
                        EXPECT_EQ(losses[i], want[3 + i]) << "step " << 4 + i;
                    } else {  // sums in another order, in the steps before the checkpoint
                        EXPECT_NEAR(losses[i], want[3 + i], 2e-5 * want[3 + i]) << "step " << 4 + i;
                    }
                }
            });
        }
    }
}

class DamageTest : public CheckpointsTest {
  protected:
    DamageTest() {
        on_grid({world().size(), 1, 0}, [&](const ProcessGrid& grid) { run(grid, "run"); });
        newest_ = store("run").path(5);
        previous_ = store("run").path(3);
    }
    // With the newest checkpoint damaged: the previous one must be chosen, and some rank name the file.
    void expect_found(const std::string& file, const std::string& what) {
        ::testing::internal::CaptureStderr();
        const std::string chosen = newest_verified(store("run"), readers(), false);
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(chosen, previous_) << file << ": " << what;
        const bool named = said.find("step_00000005: ") != std::string::npos &&
                           said.find(file) != std::string::npos;
        EXPECT_EQ(world().all_reduce_scalar(named ? 1.0 : 0.0, ReduceOp::kMax), 1.0)
            << file << ": " << what << "; said: " << said;
    }
    void expect_restored() { EXPECT_EQ(newest_verified(store("run"), readers(), false), newest_); }
    std::vector<std::string> names() const {
        std::vector<std::string> all = files_in(newest_);
        all.push_back(kManifestName);
        return all;
    }
    static void flip(const std::string& path, std::uint64_t at, int bit) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(file.get() ^ (1 << bit));
        file.seekp(static_cast<std::streamoff>(at));
        file.put(byte);
    }
    std::string newest_, previous_;
};

TEST_F(DamageTest, AnyFlippedBitOfAnyFileIsFound) {
    if (world().size() > 2) GTEST_SKIP() << "one and two ranks are enough";
    expect_restored();
    std::mt19937_64 random(17);
    for (const std::string& name : names()) {
        const std::string path = newest_ + "/" + name;
        const std::uint64_t size = fs::file_size(path);
        std::vector<std::uint64_t> positions = {0, 7, 8, size / 2, size - 1};
        for (int i = 0; i < 12; ++i) positions.push_back(random() % size);
        for (const std::uint64_t at : positions) {
            const int bit = static_cast<int>(random() % 8);
            on_main([&] { flip(path, at, bit); });
            expect_found(name, concat("byte ", at, ", bit ", bit));
            on_main([&] { flip(path, at, bit); });
        }
    }
    expect_restored();
}

TEST_F(DamageTest, CutMissingSwappedAndAddedFilesAreFound) {
    if (world().size() > 2) GTEST_SKIP() << "one and two ranks are enough";
    const std::string aside = files_.path("aside");
    for (const std::string& name : names()) {
        const std::string path = newest_ + "/" + name;
        const std::uint64_t size = fs::file_size(path);
        on_main([&] { fs::copy_file(path, aside, fs::copy_options::overwrite_existing); });
        const auto restore = [&] {
            on_main([&] { fs::copy_file(aside, path, fs::copy_options::overwrite_existing); });
        };
        for (const std::uint64_t left : {size - 1, size / 2, std::uint64_t{0}}) {
            on_main([&] { fs::resize_file(path, left); });
            expect_found(name, concat("cut to ", left, " of ", size, " bytes"));
            restore();
        }
        on_main([&] { std::ofstream(path, std::ios::app) << '\0'; });
        expect_found(name, "a byte more");
        restore();
        on_main([&] { fs::remove(path); });
        expect_found(name, "missing");
        restore();
        on_main([&] {
            const std::string other = previous_ + "/" + name;
            fs::copy_file(other, path, fs::copy_options::overwrite_existing);
        });
        expect_found(name, "of the checkpoint before");
        restore();
    }
    if (world().size() == 2) {
        const std::string first = newest_ + "/model-00001-of-00002.safetensors";
        const std::string second = newest_ + "/model-00002-of-00002.safetensors";
        const auto swap = [&] {
            on_main([&] {
                fs::rename(first, aside);
                fs::rename(second, first);
                fs::rename(aside, second);
            });
        };
        swap();
        expect_found("model-00001-of-00002.safetensors", "swapped");
        swap();
    }
    on_main([&] { std::ofstream(newest_ + "/more.json") << "x"; });
    expect_found("more.json", "added");
    on_main([&] { fs::remove(newest_ + "/more.json"); });
    expect_restored();
}

TEST_F(DamageTest, ARunGoesOnFromThePreviousCheckpointAndKeepsTheDamagedOne) {
    if (world().size() > 2) GTEST_SKIP() << "one and two ranks are enough";
    std::vector<double> want;
    const auto all_ranks = [&](const std::string& name) {
        on_grid({world().size(), 1, 0},
                [&](const ProcessGrid& grid) { want = run(grid, name).losses; });
    };
    all_ranks("straight");
    const std::vector<double> straight = want;
    on_main([&] { flip(newest_ + "/" + shard_name("optimizer", 0, world().size()), 5000, 3); });
    trainer_.resume = true;
    all_ranks("run");
    EXPECT_EQ(want, std::vector<double>(straight.begin() + 3, straight.end()));
    EXPECT_TRUE(fs::exists(newest_ + ".damaged"));
    expect_restored();
}

}  // namespace
}  // namespace evenkeel
