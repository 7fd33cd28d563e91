#include "framework/data/token_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "framework/error.h"
#include "framework/json.h"
#include "tests/support/token_files.h"

namespace evenkeel {
namespace {

using testing::bytes_of;
using testing::TemporaryDirectory;
using testing::write_documents;

std::vector<std::int32_t> values_of(const Tensor& tensor) {
    const auto* first = tensor.data<std::int32_t>();
    return {first, first + tensor.numel()};
}

// Ids first, first + 1, .. .
std::vector<std::uint16_t> counting(std::size_t count, std::size_t first = 0) {
    std::vector<std::uint16_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::uint16_t>(first + i);
    return ids;
}

class TokenDatasetTest : public ::testing::Test {
  protected:
    // A file of ids alone.
    std::string write(const std::string& name, const std::vector<std::uint16_t>& ids) const {
        return directory_.write(name, bytes_of(ids));
    }
    DataConfig config(const std::string& path, double fraction = 0.25) const {
        DataConfig result;
        result.path = path;
        result.validation_fraction = fraction;
        return result;
    }
    std::string fault(const DataConfig& data, std::int64_t seq_len = 4, std::int64_t vocab = 1000) {
        try {
            const auto dataset = open_dataset(data, seq_len, vocab);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
            return error.what();
        }
        return "";
    }
    TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(TokenDatasetTest, SequencesOverlapByOneTokenAndCoverTheirPart) {
    const TokenDataset data(config(write("a.bin", counting(80))), 8, 1000);
    EXPECT_EQ(data.train_tokens(), 60);
    EXPECT_EQ(data.validation_tokens(), 20);
    EXPECT_EQ(data.train_sequences(), 7);
    EXPECT_EQ(data.validation_sequences(), 2);
    std::set<std::int32_t> targets;
    for (std::int64_t s = 0; s < 7; ++s) {
        const Batch batch = data.train_batch(1, {s});
        const auto tokens = values_of(batch.tokens), next = values_of(batch.targets);
        EXPECT_EQ(tokens[0] % 8, 0);
        for (std::size_t t = 0; t < 8; ++t) EXPECT_EQ(next[t], tokens[t] + 1);
        targets.insert(next.begin(), next.end());
    }
    EXPECT_EQ(targets.size(), 56u);
    EXPECT_EQ(*targets.begin(), 1);
    EXPECT_EQ(*targets.rbegin(), 56);
    const Batch held_out = data.validation_batch({0, 1});
    EXPECT_EQ(values_of(held_out.tokens).front(), 60);
    EXPECT_EQ(values_of(held_out.targets).back(), 76);
}

TEST_F(TokenDatasetTest, AnEpochHasEverySequenceOnceInAnOrderOfItsOwn) {
    const TokenDataset data(config(write("a.bin", counting(800))), 8, 1000);
    const std::int64_t count = data.train_sequences();
    std::vector<std::int32_t> orders[2];
    for (int epoch = 0; epoch < 2; ++epoch) {
        for (std::int64_t s = 0; s < count; ++s) {
            orders[epoch].push_back(values_of(data.train_batch(3, {epoch * count + s}).tokens)[0]);
        }
        const std::set<std::int32_t> all(orders[epoch].begin(), orders[epoch].end());
        EXPECT_EQ(static_cast<std::int64_t>(all.size()), count);
    }
    EXPECT_NE(orders[0], orders[1]);
}

TEST_F(TokenDatasetTest, ASampleIsTheSameInAnyBatch) {
    DataConfig blend =
        config(write("a.bin", counting(300)) + "," + write("b.bin", counting(500, 400)));
    blend.weights = "0.7,0.3";
    const TokenDataset data(blend, 8, 1000), again(blend, 8, 1000);
    const Batch whole = data.train_batch(5, {0, 1, 2, 3, 4, 5, 6, 7});
    for (std::int64_t s = 0; s < 8; ++s) {
        const Batch one = again.train_batch(5, {s});
        EXPECT_EQ(values_of(one.tokens), values_of(whole.tokens.slice(0, s, s + 1))) << s;
        EXPECT_EQ(values_of(one.targets), values_of(whole.targets.slice(0, s, s + 1))) << s;
    }
    EXPECT_NE(values_of(data.train_batch(6, {0, 1, 2, 3}).tokens),
              values_of(data.train_batch(5, {0, 1, 2, 3}).tokens));
}

TEST_F(TokenDatasetTest, DocumentsArePackedWithTheirBounds) {
    // Documents of 3, 4, 1 and 12 tokens; sequences of 5.
    const std::string prefix =
        write_documents(directory_, "docs", {{1, 2, 3}, {}, {4, 5, 6, 7}, {8}, counting(12, 9)});
    DataConfig whole = config(prefix);
    whole.validation_path = prefix;
    const TokenDataset data(whole, 5, 1000);
    EXPECT_EQ(data.validation_sequences(), 3);
    const Batch batch = data.validation_batch({0, 1, 2});
    constexpr std::int32_t kNone = Batch::kNoTarget;
    EXPECT_EQ(values_of(batch.tokens),
              (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    EXPECT_EQ(values_of(batch.targets),
              (std::vector<std::int32_t>{2, 3, kNone, 5, 6, 7, kNone, kNone, 10, 11, 12, 13, 14, 15,
                                         16}));
    EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 3, 5, 7, 8, 10, 15}));
}

TEST_F(TokenDatasetTest, ADocumentThatEndsWithASequenceHasNoTargetThere) {
    const std::string prefix =
        write_documents(directory_, "docs", {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}});
    DataConfig whole = config(prefix);
    whole.validation_path = prefix;
    const Batch batch = TokenDataset(whole, 4, 1000).validation_batch({0, 1});
    EXPECT_EQ(values_of(batch.targets),
              (std::vector<std::int32_t>{2, 3, 4, Batch::kNoTarget, 6, 7, 8, Batch::kNoTarget}));
    EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 4, 8}));
}

TEST_F(TokenDatasetTest, AsAStreamEveryTokenHasATarget) {
    const std::string prefix =
        write_documents(directory_, "docs", {{1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}});
    DataConfig stream = config(prefix);
    stream.validation_path = prefix;
    stream.packing = DataConfig::Packing::kStream;
    const Batch batch = TokenDataset(stream, 5, 1000).validation_batch({0, 1});
    EXPECT_EQ(values_of(batch.targets),
              (std::vector<std::int32_t>{2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
    EXPECT_TRUE(batch.cu_seqlens.empty());
}

TEST_F(TokenDatasetTest, FlatFilesHaveTheirDocumentsFromATokenThatEndsThem) {
    DataConfig flat = config(write("flat.bin", {1, 2, 99, 3, 4, 5, 99, 6, 7, 8, 9}));
    flat.validation_path = flat.path;
    flat.end_of_document = 99;
    const Batch batch = TokenDataset(flat, 5, 1000).validation_batch({0, 1});
    constexpr std::int32_t kNone = Batch::kNoTarget;
    EXPECT_EQ(values_of(batch.targets),
              (std::vector<std::int32_t>{2, 99, kNone, 4, 5, 99, kNone, 7, 8, 9}));
    EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 3, 5, 7, 10}));
}

TEST_F(TokenDatasetTest, TheHeldOutPartBeginsWithADocument) {
    const std::string prefix =
        write_documents(directory_, "docs", {counting(40), counting(50, 40), counting(10, 90)});
    // Three quarters of 100 tokens lie within the second document.
    const TokenDataset data(config(prefix), 4, 1000);
    EXPECT_EQ(data.train_tokens(), 40);
    EXPECT_EQ(data.validation_tokens(), 60);
    EXPECT_EQ(values_of(data.validation_batch({0}).tokens)[0], 40);
    // But not where nothing would be left to train on.
    const std::string one = write_documents(directory_, "one", {counting(100)});
    EXPECT_EQ(TokenDataset(config(one), 4, 1000).train_tokens(), 75);
}

TEST_F(TokenDatasetTest, BlendsFollowTheirWeightsAndEachCorpusItsOwnEpochs) {
    DataConfig blend =
        config(write("a.bin", counting(100)) + "," + write("b.bin", counting(400, 500)));
    blend.weights = "3,1";
    const TokenDataset data(blend, 8, 1000);
    EXPECT_EQ(data.num_corpora(), 2u);
    const std::int64_t of_a = (75 - 1) / 8;  // sequences
    std::map<std::int32_t, int> seen;
    std::int64_t from_a = 0;
    for (std::int64_t n = 0; n < 4 * of_a; ++n) {
        const std::int32_t token = values_of(data.train_batch(2, {n}).tokens)[0];
        ++seen[token];
        from_a += token < 500 ? 1 : 0;
    }
    EXPECT_EQ(from_a, 3 * of_a);
    for (const auto& [token, times] : seen) EXPECT_EQ(times, token < 500 ? 3 : 1) << token;
}

TEST_F(TokenDatasetTest, ValidationGoesThroughAllCorpora) {
    const TokenDataset data(
        config(write("a.bin", counting(40)) + "," + write("b.bin", counting(80, 500))), 4, 1000);
    EXPECT_EQ(data.validation_sequences(), 2 + 4);
    EXPECT_EQ(values_of(data.validation_batch({1}).tokens)[0], 34);
    EXPECT_EQ(values_of(data.validation_batch({2}).tokens)[0], 560);
    EXPECT_THROW(data.validation_batch({6}), Error);
    EXPECT_THROW(data.validation_batch({-1}), Error);
}

TEST_F(TokenDatasetTest, TheFingerprintFollowsAllThatDecidesTheOrder) {
    const std::string a = write("a.bin", counting(100)), b = write("b.bin", counting(100, 300));
    const auto fingerprint = [](const DataConfig& data, std::int64_t seq_len = 8) {
        return TokenDataset(data, seq_len, 1000).fingerprint();
    };
    DataConfig base = config(a + "," + b);
    base.weights = "1,2";
    const std::uint64_t want = fingerprint(base);
    const auto said = nlohmann::ordered_json::parse(TokenDataset(base, 8, 1000).description());
    EXPECT_EQ(said["validation file 2"]["tokens"], 100);
    EXPECT_EQ(fingerprint(base), want);
    EXPECT_NE(fingerprint(base, 4), want);
    const auto changed = [&](const std::function<void(DataConfig&)>& change) {
        DataConfig data = base;
        change(data);
        const TokenDataset made(data, 8, 1000);
        // Sequence lengths apart, which messages tell of by themselves.
        const auto now = nlohmann::ordered_json::parse(made.description());
        EXPECT_EQ(now == said, made.fingerprint() == want) << made.description() << "\n"
                                                           << said.dump();
        return made.fingerprint();
    };
    EXPECT_EQ(changed([](DataConfig& d) { d.weights = "10,20"; }), want);
    EXPECT_NE(changed([](DataConfig& d) { d.weights = "2,1"; }), want);
    EXPECT_NE(changed([](DataConfig& d) { d.validation_fraction = 0.3; }), want);
    EXPECT_NE(changed([&](DataConfig& d) { d.validation_path = a; }), want);
    EXPECT_NE(changed([](DataConfig& d) { d.packing = DataConfig::Packing::kStream; }), want);
    EXPECT_NE(changed([](DataConfig& d) { d.end_of_document = 5; }), want);
    EXPECT_NE(changed([&](DataConfig& d) { d.path = b + "," + a; }), want);
}

TEST_F(TokenDatasetTest, FaultsNameTheSettingAndTheFile) {
    const std::string a = write("a.bin", counting(100));
    EXPECT_FAULT(fault(config(a, 0.0)), "data.validation_fraction: got 0");
    EXPECT_FAULT(fault(config(a), 80), a + ": got 75 of 100 tokens to train, want more than 80");
    EXPECT_FAULT(fault(config(a), 30), a + ": got 25 of 100 tokens to validate on");
    EXPECT_FAULT(fault(config(a), 0), "trainer.seq_len: got 0");
    DataConfig data = config(a);
    data.weights = "1,2";
    EXPECT_FAULT(fault(data), "data.weights: got 2 numbers, want 1");
    data.weights = "much";
    EXPECT_FAULT(fault(data), "data.weights: got \"much\"");
    data.weights = "-1";
    EXPECT_FAULT(fault(data), "data.weights: got -1");
    data = config(a);
    data.end_of_document = 1000;
    EXPECT_FAULT(fault(data),
                 "data.end_of_document: got 1000, want a token below model.vocab_size");
    data = config(directory_.write("text", "words"));
    data.weights = "1";
    EXPECT_FAULT(fault(data), "data.weights: got 1 and a text in data.path");
}

TEST_F(TokenDatasetTest, TextStaysTextAndTokensAreTokens) {
    EXPECT_FALSE(config(directory_.write("text", "words")).has_tokens());
    EXPECT_FALSE(config(directory_.file("not there")).has_tokens());
    EXPECT_FALSE(config("").has_tokens());
    EXPECT_TRUE(config("a.bin").has_tokens());
    EXPECT_TRUE(config("a.bin,b.idx").has_tokens());
    const std::string odd = directory_.write("odd,name.bin", bytes_of(counting(100)));
    EXPECT_EQ(config(odd).paths(), std::vector<std::string>{odd});
    EXPECT_EQ(open_dataset(config(directory_.write("long", std::string(1000, 'x'))), 4, 300)
                  ->vocab_size(),
              256);
}

}  // namespace
}  // namespace evenkeel
