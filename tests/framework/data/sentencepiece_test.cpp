// With a SentencePiece model that the test trains.
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include "framework/data/corpus_builder.h"
#include "framework/data/token_stream.h"
#include "framework/data/tokenizer.h"
#include "framework/storage/checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

const std::string kSentences[] = {"the keel of a ship lies even in the water",
                                  "a ship with an even keel sails on",
                                  "water carries the ship and the ship carries us"};

class SentencePieceTest : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        directory_ = new testing::TemporaryDirectory();
        std::string text;
        for (int i = 0; i < 20; ++i) {
            for (const std::string& sentence : kSentences) text += sentence + "\n";
        }
        const std::string input = directory_->write("text", text);
        const auto status = sentencepiece::SentencePieceTrainer::Train(
            "--input=" + input + " --model_prefix=" + directory_->file("small") +
            " --vocab_size=40 --hard_vocab_limit=false --minloglevel=2 --num_threads=1");
        ASSERT_TRUE(status.ok()) << status.ToString();
    }
    static void TearDownTestSuite() { delete directory_; }
    static std::string model() { return directory_->file("small.model"); }

    static testing::TemporaryDirectory* directory_;
};

testing::TemporaryDirectory* SentencePieceTest::directory_ = nullptr;

TEST_F(SentencePieceTest, TextComesBack) {
    const auto tokenizer = make_tokenizer(model());
    for (const std::string& sentence : kSentences) {
        const std::vector<std::int32_t> tokens = tokenizer->encode(sentence);
        EXPECT_LT(tokens.size(), sentence.size());
        EXPECT_EQ(tokenizer->decode(tokens), sentence);
        for (const std::int32_t token : tokens) {
            EXPECT_TRUE(token >= 0 && token < tokenizer->vocab_size()) << token;
        }
    }
    EXPECT_EQ(tokenizer->end_of_document(), 2);
    EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{100000, -5}), "");
}

TEST_F(SentencePieceTest, ACorpusKeepsItsModel) {
    CorpusOptions options;
    options.inputs = {directory_->write(
        "a.jsonl",
        "{\"text\": \"" + kSentences[0] + "\"}\n{\"text\": \"" + kSentences[1] + "\"}\n")};
    options.output = directory_->file("corpus");
    options.tokenizer = model();
    build_corpus(options);
    EXPECT_EQ(read_file(directory_->file("corpus.model")), read_file(model()));
    EXPECT_EQ(tokenizer_of(directory_->file("corpus.bin")), directory_->file("corpus.model"));
    const auto tokenizer = make_tokenizer(directory_->file("corpus.model"));
    const TokenStream stream(directory_->file("corpus"), tokenizer->vocab_size(), -1);
    ASSERT_EQ(stream.index()->num_documents(), 2);
    for (std::int64_t d = 0; d < 2; ++d) {
        const std::int64_t begin = stream.index()->document_start(d);
        std::vector<std::int32_t> ids(
            static_cast<std::size_t>(stream.index()->document_start(d + 1) - begin));
        stream.read(begin, ids);
        EXPECT_EQ(ids.back(), tokenizer->end_of_document());
        ids.pop_back();
        EXPECT_EQ(tokenizer->decode(ids), kSentences[d]);
    }
}

}  // namespace
}  // namespace evenkeel
