#include "framework/data/byte_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "framework/data/sampler.h"
#include "framework/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/unprivileged.h"

namespace evenkeel {
namespace {

using testing::TemporaryDirectory;

std::string counting_text(std::size_t size) {
    std::string text(size, ' ');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(1 + i % 251);
    return text;
}

class DatasetTest : public ::testing::Test {
  protected:
    void write(const std::string& name, const std::string& bytes) const {
        std::ofstream(directory_.file(name), std::ios::binary) << bytes;
    }
    ByteDataset load(const std::string& name, double fraction, std::int64_t seq_len) const {
        DataConfig config;
        config.path = name.empty() ? directory_.path() : directory_.file(name);
        config.validation_fraction = fraction;
        return ByteDataset(config, seq_len);
    }
    std::string fault(const std::string& path,
                      double fraction,
                      std::int64_t seq_len,
                      ErrorCode want = ErrorCode::kConfig) const {
        DataConfig config;
        config.path = path;
        config.validation_fraction = fraction;
        try {
            const ByteDataset dataset(config, seq_len);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), want) << e.what();
            return e.what();
        }
        return "";
    }
    TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(DatasetTest, TargetsAreTheNextTokens) {
    write("text", counting_text(1000));
    const ByteDataset data = load("text", 0.2, 16);
    EXPECT_EQ(data.train_tokens(), 800);
    EXPECT_EQ(data.validation_tokens(), 200);
    EXPECT_EQ(data.train_sequences(), 49);
    EXPECT_EQ(data.validation_sequences(), 12);
    const Batch batch = data.train_batch(5, {3, 48, 100});
    check_shape("test", "tokens", batch.tokens, {3, 16});
    check_shape("test", "targets", batch.targets, {3, 16});
    const Sampler order(49, 5);
    for (std::int64_t b = 0; b < 3; ++b) {
        for (std::int64_t t = 0; t < 16; ++t) {
            const std::int64_t at = order.sequence(std::vector{3, 48, 100}[b]) * 16 + t;
            EXPECT_EQ(batch.tokens.data<std::int32_t>()[b * 16 + t], 1 + at % 251);
            EXPECT_EQ(batch.targets.data<std::int32_t>()[b * 16 + t], 1 + (at + 1) % 251);
        }
    }
}

TEST_F(DatasetTest, BytesAboveAsciiAreNotNegative) {
    write("text", std::string(100, '\xff'));
    const Batch batch = load("text", 0.5, 4).train_batch(1, {0});
    EXPECT_EQ(batch.tokens.data<std::int32_t>()[0], 255);
    EXPECT_EQ(batch.targets.data<std::int32_t>()[3], 255);
}

TEST_F(DatasetTest, TrainingNeverSeesTheHeldOutPart) {
    for (std::int64_t seq_len : {1, 7, 16, 19, 20, 199}) {
        write("text", std::string(400, 'a') + std::string(200, 'b'));
        const ByteDataset data = load("text", 1.0 / 3.0, seq_len);
        ASSERT_EQ(data.train_tokens(), 400);
        const auto all_are = [](const Tensor& tensor, char byte) {
            const auto* first = tensor.data<std::int32_t>();
            return std::all_of(first, first + tensor.numel(),
                               [&](std::int32_t token) { return token == byte; });
        };
        for (std::int64_t s = 0; s < data.train_sequences(); ++s) {
            const Batch batch = data.train_batch(1, {s});
            EXPECT_TRUE(all_are(batch.tokens, 'a') && all_are(batch.targets, 'a')) << s;
        }
        for (std::int64_t s = 0; s < data.validation_sequences(); ++s) {
            const Batch batch = data.validation_batch({s});
            EXPECT_TRUE(all_are(batch.tokens, 'b') && all_are(batch.targets, 'b')) << s;
        }
        EXPECT_THROW(data.validation_batch({data.validation_sequences()}), Error);
        EXPECT_THROW(data.train_batch(1, {-1}), Error);
    }
}

TEST_F(DatasetTest, SequencesCoverTheirSplit) {
    write("text", counting_text(101));
    const ByteDataset data = load("text", 0.2, 9);
    // 81 training bytes: 8 sequences of 9 tokens, whose targets are bytes 1 to 72.
    EXPECT_EQ(data.train_sequences(), 8);
    std::vector<std::int32_t> targets;
    for (std::int64_t s = 0; s < 8; ++s) {
        const Batch batch = data.train_batch(1, {s});
        const auto* first = batch.targets.data<std::int32_t>();
        targets.insert(targets.end(), first, first + 9);
    }
    std::sort(targets.begin(), targets.end());  // the order of training is another one
    for (std::size_t i = 0; i < targets.size(); ++i) {
        EXPECT_EQ(targets[i], static_cast<std::int32_t>(i + 2));
    }
}

TEST_F(DatasetTest, ShortestTextThatIsEnough) {
    write("text", counting_text(10));
    EXPECT_EQ(load("text", 0.5, 4).train_sequences(), 1);
    EXPECT_EQ(load("text", 0.5, 4).validation_sequences(), 1);
    EXPECT_FAULT(fault(directory_.file("text"), 0.5, 5), "of 10 bytes, 5 to train and 5");
}

TEST_F(DatasetTest, EmptyBatchHasNoRows) {
    write("text", counting_text(100));
    EXPECT_EQ(load("text", 0.5, 4).train_batch(1, {}).tokens.shape(), (Shape{0, 4}));
}

TEST_F(DatasetTest, JoinsTheTextFilesOfADirectoryInNameOrder) {
    write("b", "second ");
    write("a", "first ");
    write("c.dat", std::string("\0\0\0\2", 4));
    write("d", "");
    write("e", "third");
    std::filesystem::create_symlink("a", directory_.file("b.u8"));
    std::filesystem::create_directory(directory_.file("off"));
    write("off/x", "not this");
    EXPECT_EQ(load("", 0.3, 2).text(), "first second third");
}

TEST_F(DatasetTest, FingerprintFollowsTextAndSplit) {
    write("a", counting_text(1000));
    write("b", counting_text(1000));
    std::string changed = counting_text(1000);
    changed[500] = 'x';
    write("c", changed);
    const std::uint64_t want = load("a", 0.1, 16).fingerprint();
    EXPECT_EQ(load("a", 0.1, 8).fingerprint(), want);
    EXPECT_EQ(load("b", 0.1, 16).fingerprint(), want);
    EXPECT_NE(load("c", 0.1, 16).fingerprint(), want);
    EXPECT_NE(load("a", 0.2, 16).fingerprint(), want);
}

TEST_F(DatasetTest, EntropiesAreInNats) {
    // The validation half alternates: two equally frequent bytes, each of which determines the next.
    std::string text(1000, 'x');
    for (std::size_t i = 500; i < 1000; ++i) text[i] = i % 2 == 0 ? 'a' : 'b';
    write("text", text);
    const ByteDataset data = load("text", 0.5, 16);
    EXPECT_NEAR(data.unigram_entropy(), std::log(2.0), 1e-12);
    EXPECT_NEAR(data.bigram_entropy(), 0.0, 1e-12);
}

TEST_F(DatasetTest, BigramEntropyByHand) {
    // "aabab": pairs aa, ab, ba, ab. H(next | a) over {a: 1/3, b: 2/3}, weight 3/4; b is always followed
    // by a.
    write("text", "xxxxxaabab");
    const ByteDataset data = load("text", 0.5, 4);
    const double want =
        0.75 * (-(1.0 / 3.0) * std::log(1.0 / 3.0) - (2.0 / 3.0) * std::log(2.0 / 3.0));
    EXPECT_NEAR(data.bigram_entropy(), want, 1e-12);
    EXPECT_NEAR(data.unigram_entropy(), -0.6 * std::log(0.6) - 0.4 * std::log(0.4), 1e-12);
}

TEST_F(DatasetTest, FaultsNameThePathAndTheFix) {
    EXPECT_FAULT(fault("", 0.1, 16), "data.path: got nothing, want a text file");
    EXPECT_FAULT(fault("/nonexistent/text", 0.1, 16),
                 "data.path: got /nonexistent/text, which does not exist");
    write("empty", "");
    EXPECT_FAULT(fault(directory_.file("empty"), 0.1, 16), "empty, which is empty");
    write("binary", std::string("ab\0cd", 5));
    EXPECT_FAULT(fault(directory_.file("binary"), 0.1, 16), "not text (byte 2 is NUL)");
    EXPECT_FAULT(fault(directory_.path(), 0.1, 16),
                 directory_.path() + ", a directory without text (1 binary files)");
    write("tokens.bin", std::string(100, 'x'));
    EXPECT_FAULT(fault(directory_.path(), 0.1, 16),
                 directory_.path() + ", a directory with tokens.bin in it, a file of tokens");
    std::filesystem::remove(directory_.file("tokens.bin"));
    write("short", "short");
    EXPECT_FAULT(fault(directory_.file("short"), 0.1, 16), "want more than 16 (trainer.seq_len)");
    EXPECT_FAULT(fault(directory_.file("short"), 0.0, 16), "data.validation_fraction: got 0");
    EXPECT_FAULT(fault(directory_.file("short"), 1.0, 16), "data.validation_fraction: got 1");
    EXPECT_FAULT(fault(directory_.file("short"), NAN, 16), "data.validation_fraction");
    EXPECT_FAULT(fault(directory_.file("short"), 0.1, 0), "trainer.seq_len: got 0");
}

TEST_F(DatasetTest, AFileThatMayNotBeReadIsAnIoError) {
    const testing::Unprivileged unprivileged(directory_.path());
    if (!unprivileged.holds()) GTEST_SKIP() << "cannot drop root's rights";
    write("secret", counting_text(100));
    std::filesystem::permissions(directory_.file("secret"), std::filesystem::perms::none);
    EXPECT_FAULT(fault(directory_.file("secret"), 0.5, 4, ErrorCode::kIo), "Permission denied");
    EXPECT_FAULT(fault(directory_.path(), 0.5, 4, ErrorCode::kIo), "secret: cannot open");
    std::filesystem::permissions(directory_.path(), std::filesystem::perms::none);
    EXPECT_FAULT(fault(directory_.path(), 0.5, 4, ErrorCode::kIo), "cannot list");
    EXPECT_FAULT(fault(directory_.file("x"), 0.5, 4, ErrorCode::kIo), "Permission denied");
    std::filesystem::permissions(directory_.path(), std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace evenkeel
