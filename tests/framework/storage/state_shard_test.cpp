// Tensors in parts: any cut reads back at any slice, and what does not make whole tensors is refused by name.
#include "framework/storage/state_shard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>

#include "framework/error.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::same_bits;

using Random = std::mt19937;

std::int64_t pick(Random& random, std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

// Ascending numbers from 0 to `end`; some may be equal.
std::vector<std::int64_t> random_cuts(Random& random, std::int64_t end, int pieces) {
    std::vector<std::int64_t> cuts = {0, end};
    for (int i = 1; i < pieces; ++i) cuts.push_back(pick(random, 0, end));
    std::sort(cuts.begin(), cuts.end());
    return cuts;
}

// Parts of a tensor, along one dimension, and of these slices runs.
std::vector<TensorPiece> cut_randomly(Random& random,
                                      const std::string& name,
                                      const Tensor& whole) {
    std::vector<TensorPiece> pieces;
    const auto dim = static_cast<int>(pick(random, 0, whole.rank() - 1));
    const auto cuts = random_cuts(random, whole.size(dim), static_cast<int>(pick(random, 1, 4)));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        if (cuts[i] == cuts[i + 1]) continue;
        const Tensor slice = whole.slice(dim, cuts[i], cuts[i + 1]).contiguous();
        if (pick(random, 0, 1) == 0) {
            pieces.push_back({name, whole.shape(), {dim, cuts[i], cuts[i + 1], 0, false}, slice});
            continue;
        }
        const Tensor flat = slice.view({slice.numel()});
        const auto runs = random_cuts(random, flat.numel(), static_cast<int>(pick(random, 1, 3)));
        for (std::size_t j = 0; j + 1 < runs.size(); ++j) {
            pieces.push_back({name,
                              whole.shape(),
                              {dim, cuts[i], cuts[i + 1], runs[j], true},
                              flat.slice(0, runs[j], runs[j + 1])});
        }
    }
    return pieces;
}

class StateShardTest : public ::testing::Test {
  protected:
    // Each piece into the first file that has none of its tensor.
    void write(const std::vector<TensorPiece>& pieces, int files) {
        std::vector<StateShard> shards(static_cast<std::size_t>(files));
        for (int i = 0; i < files; ++i) shards[i].file = shard_name("model", i, files);
        for (const TensorPiece& piece : pieces) {
            for (StateShard& shard : shards) {
                const bool has =
                    std::any_of(shard.pieces.begin(), shard.pieces.end(),
                                [&](const TensorPiece& other) { return other.name == piece.name; });
                if (has) continue;
                shard.pieces.push_back(piece);
                break;
            }
        }
        for (const StateShard& shard : shards) write_shard(directory_.path(), shard);
    }
    std::string refusal() const {
        try {
            open_state(directory_.path(), "model");
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
            return error.what();
        }
        return "";
    }
    testing::TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(StateShardTest, AnyCutReadsBackAtAnySlice) {
    for (unsigned seed = 0; seed < 150; ++seed) {
        Random random(seed);
        SCOPED_TRACE(concat("seed ", seed));
        const testing::TemporaryDirectory fresh;
        std::vector<std::pair<std::string, Tensor>> wholes;
        std::vector<StateShard> shards(12);
        for (int t = 0; t < 2; ++t) {
            Shape shape;
            for (auto dims = pick(random, 1, 3); dims > 0; --dims) {
                shape.push_back(pick(random, 1, 7));
            }
            const std::string name = concat("tensor", t);
            const DType type = pick(random, 0, 1) == 0 ? DType::kFloat32 : DType::kBFloat16;
            wholes.emplace_back(name, testing::gaussian(shape, type, seed * 2 + t));
            std::size_t next = 0;
            for (TensorPiece& piece : cut_randomly(random, name, wholes.back().second)) {
                shards[next++].pieces.push_back(piece);
            }
        }
        std::shuffle(shards.begin(), shards.end(), random);
        for (int i = 0; i < 12; ++i) {
            shards[static_cast<std::size_t>(i)].file = shard_name("model", i, 12);
            write_shard(fresh.path(), shards[static_cast<std::size_t>(i)]);
        }
        const auto source = open_state(fresh.path(), "model");
        for (const auto& [name, whole] : wholes) {
            ASSERT_EQ(source->shape(name), whole.shape());
            ASSERT_EQ(source->dtype(name), whole.dtype());
            for (int dim = 0; dim < whole.rank(); ++dim) {
                const std::int64_t begin = pick(random, 0, whole.size(dim));
                const std::int64_t end = pick(random, begin, whole.size(dim));
                const Tensor want = whole.slice(dim, begin, end).contiguous();
                const Tensor got = testing::poisoned(want.shape(), want.dtype());
                source->read_slice(name, dim, begin, end, got);
                ASSERT_TRUE(same_bits(got, want))
                    << name << " " << to_string(whole.shape()) << ", " << begin << " to " << end
                    << " of dimension " << dim;
                const Tensor all = testing::poisoned(whole.shape(), whole.dtype());
                source->read_slice(name, dim, 0, whole.size(dim), all);
                ASSERT_TRUE(same_bits(all, whole)) << name << " along dimension " << dim;
            }
        }
    }
}

TEST_F(StateShardTest, AFileOfWholeTensorsIsLikeAnyOther) {
    const Tensor a = testing::gaussian({3, 4}, DType::kFloat32, 1);
    const ManifestFile written = write_shard(
        directory_.path(), {"model.safetensors", {{"model", "{}"}}, {{"a", {3, 4}, {1, 0, 4}, a}}});
    EXPECT_EQ(written, describe_file(directory_.path(), "model.safetensors"));
    const SafetensorsReader reader(directory_.file("model.safetensors"));
    EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"model", "{}"}}));
    const auto source = open_state(directory_.path(), "model");
    EXPECT_EQ(source->origin(), directory_.file("model.safetensors"));
    EXPECT_EQ(source->model(), "{}");
    EXPECT_TRUE(has_state(directory_.path(), "model"));
    EXPECT_FALSE(has_state(directory_.path(), "optimizer"));
    EXPECT_FALSE(has_state(directory_.path(), "mode"));
}

TEST_F(StateShardTest, NamesCountFromOne) {
    EXPECT_EQ(shard_name("model", 0, 1), "model.safetensors");
    EXPECT_EQ(shard_name("model", 0, 3), "model-00001-of-00003.safetensors");
    EXPECT_EQ(shard_name("model", 99998, 123456), "model-99999-of-123456.safetensors");
}

TEST_F(StateShardTest, FilesThatDoNotBelongTogetherAreRefused) {
    const Tensor a = testing::gaussian({4, 3}, DType::kFloat32, 1);
    EXPECT_FAULT(refusal(), "model.safetensors: cannot open");
    write({{"a", {4, 3}, {0, 0, 2}, a.slice(0, 0, 2)}, {"a", {4, 3}, {0, 2, 4}, a.slice(0, 2, 4)}},
          2);
    EXPECT_EQ(refusal(), "");
    const std::string second = directory_.file("model-00002-of-00002.safetensors");
    fs::rename(second, directory_.file("aside"));
    EXPECT_FAULT(refusal(), "model-00002-of-00002.safetensors: is missing");
    fs::rename(directory_.file("aside"), second);
    write_shard(directory_.path(), {"model-00001-of-00003.safetensors", {}, {}});
    EXPECT_FAULT(refusal(), "number of shards");
    fs::remove(directory_.file("model-00001-of-00003.safetensors"));
    write_shard(directory_.path(), {"model.safetensors", {}, {}});
    EXPECT_FAULT(refusal(), "model.safetensors: is there beside shards");
    fs::remove(directory_.file("model.safetensors"));
    write_shard(directory_.path(), {"model-00002-of-00002.safetensors", {{"model", "x"}}, {}});
    EXPECT_FAULT(refusal(), "has other metadata than");
}

TEST_F(StateShardTest, EveryElementMustBeThereOnce) {
    const Tensor a = testing::gaussian({4, 6}, DType::kFloat32, 1);
    const auto slice = [&](int dim, std::int64_t begin, std::int64_t end) {
        return TensorPiece{"a", {4, 6}, {dim, begin, end}, a.slice(dim, begin, end).contiguous()};
    };
    const auto run = [&](std::int64_t first, std::int64_t last) {
        return TensorPiece{"a", {4, 6}, {0, 0, 4, first, true}, a.view({24}).slice(0, first, last)};
    };
    const auto fault = [&](const std::vector<TensorPiece>& pieces) {
        write(pieces, 2);
        return refusal();
    };
    EXPECT_EQ(fault({slice(0, 0, 1), slice(0, 1, 4)}), "");
    EXPECT_EQ(fault({run(0, 5), run(5, 24)}), "");
    EXPECT_FAULT(fault({slice(0, 0, 2), slice(0, 1, 4)}), "are in two files");
    EXPECT_FAULT(fault({slice(0, 0, 2), slice(0, 0, 2)}), "want from 12");
    EXPECT_FAULT(fault({slice(0, 0, 1), slice(0, 2, 4)}), "follow a gap");
    EXPECT_FAULT(fault({slice(0, 1, 2), slice(0, 2, 4)}), "follow a gap");
    EXPECT_FAULT(fault({slice(0, 0, 1), slice(0, 1, 3)}), "got 3 of the 4 elements");
    EXPECT_FAULT(fault({slice(0, 0, 2), slice(1, 0, 3)}), "along dimension");
    EXPECT_FAULT(fault({run(0, 5), run(6, 24)}), "want from 5");
    EXPECT_FAULT(fault({run(0, 5), run(4, 24)}), "want from 5");
    EXPECT_FAULT(fault({run(0, 5), run(5, 23)}), "got 23 of the 24 elements");
    EXPECT_FAULT(fault({slice(0, 0, 2)}), "got 2 of the 4 elements");
    TensorPiece other = slice(0, 2, 4);
    other.data = other.data.to(DType::kBFloat16);
    EXPECT_FAULT(fault({slice(0, 0, 2), other}), "elsewhere of F32");
    other = slice(0, 2, 4);
    other.global_shape = {5, 6};
    EXPECT_FAULT(fault({slice(0, 0, 2), other}), "elsewhere of F32 [4, 6]");
}

TEST_F(StateShardTest, MetadataThatLiesIsRefused) {
    const Tensor a = testing::gaussian({2, 3}, DType::kFloat32, 1);
    const auto fault = [&](const std::string& pieces) {
        write_safetensors(directory_.file("model.safetensors"), {{"a", a}}, {{"pieces", pieces}});
        return refusal();
    };
    EXPECT_EQ(fault("{}"), "");
    EXPECT_EQ(fault(R"({"a":{"shape":[2,3],"dim":0,"begin":0,"end":2}})"), "");
    for (const char* pieces :
         {"",
          "[",
          "[]",
          "1",
          R"({"b":{}})",
          R"({"a":1})",
          R"({"a":{}})",
          R"({"a":{"shape":[],"dim":0,"begin":0,"end":2}})",
          R"({"a":{"shape":"x","dim":0,"begin":0,"end":2}})",
          R"({"a":{"shape":[4,3],"dim":2,"begin":0,"end":2}})",
          R"({"a":{"shape":[4,3],"dim":-1,"begin":0,"end":2}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":1}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":3,"end":5}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":2,"end":0}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":2,"x":0}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":2.0}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":18446744073709551615}})",
          R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":2,"first":0}})",
          R"({"a":{"shape":[1152921504606846976,16],"dim":0,"begin":0,"end":2}})",
          R"({"a":{"shape":[4294967296,4294967296],"dim":0,"begin":0,"end":2}})",
          R"({"a":{"shape":[1,1,1,1,1,1,1,1,1],"dim":0,"begin":0,"end":1}})"}) {
        EXPECT_NE(fault(pieces), "") << pieces;
    }
    const Tensor flat = a.view({6});
    const auto run_fault = [&](const std::string& first) {
        write_safetensors(directory_.file("model.safetensors"), {{"a", flat}},
                          {{"pieces", R"({"a":{"shape":[4,3],"dim":0,"begin":0,"end":4,"first":)" +
                                          first + "}}"}});
        return refusal();
    };
    EXPECT_FAULT(run_fault("6"), "want from 0");
    EXPECT_FAULT(run_fault("7"), "want one dimension inside 12");
    EXPECT_FAULT(run_fault("18446744073709551615"), "want less than 2^60");
}

}  // namespace
}  // namespace evenkeel
