#include "framework/data/token_stream.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "framework/data/tokenizer.h"
#include "framework/error.h"
#include "tests/support/token_files.h"

namespace evenkeel {
namespace {

using testing::bytes_of;
using testing::llm_c_header;
using testing::TemporaryDirectory;
using testing::write_documents;

std::vector<std::int32_t> read(const TokenStream& stream, std::int64_t first, std::size_t count) {
    std::vector<std::int32_t> ids(count);
    stream.read(first, ids);
    return ids;
}

std::vector<std::int64_t> starts(const TokenStream& stream, std::int64_t first, std::size_t count) {
    std::vector<std::int64_t> result;
    stream.document_starts(first, read(stream, first, count), result);
    return result;
}

std::string fault(const std::function<void()>& f) {
    try {
        f();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        return error.what();
    }
    return "";
}

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

class TokenStreamTest : public ::testing::Test {
  protected:
    TemporaryDirectory directory_;
};

TEST_F(TokenStreamTest, MegatronByPrefixOrByEitherFile) {
    const std::string prefix =
        write_documents(directory_, "corpus", {{1, 2, 3}, {}, {4, 5}, {}, {6, 7, 8, 9}});
    for (const std::string& path : {prefix, prefix + ".bin", prefix + ".idx"}) {
        EXPECT_TRUE(is_token_file(path));
        const TokenStream stream(path, 10, -1);
        EXPECT_EQ(stream.format(), TokenFormat::kMegatron);
        EXPECT_EQ(stream.num_tokens(), 9);
        EXPECT_EQ(read(stream, 2, 4), (std::vector<std::int32_t>{3, 4, 5, 6}));
    }
}

TEST_F(TokenStreamTest, DocumentsStartWhereTheIndexSays) {
    const TokenStream stream(
        write_documents(directory_, "corpus", {{1, 2, 3}, {}, {4, 5}, {}, {6, 7, 8, 9}}), 10, -1);
    EXPECT_EQ(starts(stream, 0, 9), (std::vector<std::int64_t>{3, 5}));
    EXPECT_EQ(starts(stream, 0, 3), (std::vector<std::int64_t>{3}));
    EXPECT_EQ(starts(stream, 3, 2), (std::vector<std::int64_t>{2}));
    EXPECT_EQ(starts(stream, 4, 5), (std::vector<std::int64_t>{1}));
    EXPECT_EQ(starts(stream, 5, 4), (std::vector<std::int64_t>{}));
    EXPECT_EQ(stream.document_of(4), 3);
    EXPECT_EQ(stream.document_of(5), 5);
    EXPECT_EQ(stream.document_of(2), 0);
}

TEST_F(TokenStreamTest, EveryTypeOfIds) {
    const auto check = [&]<typename T>(TokenType type, T largest) {
        const std::string name = name_of(type);
        directory_.write(name + ".bin", bytes_of(std::vector<T>{0, 1, largest}));
        directory_.write(name + ".idx", make_megatron_index(type, std::vector<std::int32_t>{3}));
        const TokenStream stream(directory_.file(name), INT32_MAX, -1);
        EXPECT_EQ(read(stream, 0, 3),
                  (std::vector<std::int32_t>{0, 1, static_cast<std::int32_t>(largest)}))
            << name;
    };
    check(TokenType::kUint8, std::uint8_t{255});
    check(TokenType::kInt8, std::int8_t{127});
    check(TokenType::kUint16, std::uint16_t{65535});
    check(TokenType::kInt16, std::int16_t{32767});
    check(TokenType::kInt32, std::int32_t{2000000});
    check(TokenType::kInt64, std::int64_t{2000000});
}

TEST_F(TokenStreamTest, NanoGptHasNothingButIds) {
    const TokenStream stream(
        directory_.write("train.bin", bytes_of(std::vector<std::uint16_t>{7, 50256, 9, 50256})),
        50257, 50256);
    EXPECT_EQ(stream.format(), TokenFormat::kNanoGpt);
    EXPECT_EQ(read(stream, 0, 4), (std::vector<std::int32_t>{7, 50256, 9, 50256}));
    EXPECT_EQ(starts(stream, 0, 4), (std::vector<std::int64_t>{2, 4}));
    EXPECT_EQ(starts(stream, 2, 1), (std::vector<std::int64_t>{}));
}

TEST_F(TokenStreamTest, APairWithoutItsIndexIsNotTakenForBareIds) {
    const std::string prefix = write_documents(directory_, "corpus", {{1, 2, 3}, {4, 5}});
    directory_.write("corpus.json",
                     R"({"tokenizer":"bytes","vocab_size":256,"end_of_document":0})");
    EXPECT_EQ(TokenStream(prefix + ".bin", 256, -1).format(), TokenFormat::kMegatron);
    std::filesystem::remove(prefix + ".idx");
    EXPECT_FAULT(fault([&] { TokenStream(prefix + ".bin", 256, -1); }),
                 prefix + ".idx: is missing, but " + prefix + ".json is the description");
}

TEST_F(TokenStreamTest, AnIndexIsFoundBesideWhatALinkLeadsTo) {
    const std::string prefix = write_documents(directory_, "corpus", {{1, 2, 3}, {4, 5}});
    const std::string link = directory_.file("link.bin");
    std::filesystem::create_symlink(prefix + ".bin", link);
    const TokenStream stream(link, 10, -1);
    EXPECT_EQ(stream.format(), TokenFormat::kMegatron);
    EXPECT_EQ(stream.index()->num_documents(), 2);
    directory_.write("corpus.json",
                     R"({"tokenizer":"bytes","vocab_size":256,"end_of_document":0})");
    EXPECT_EQ(read_token_description(link).value().vocab_size, 256);
    // One beside the link goes before.
    directory_.write("link.idx", make_megatron_index(TokenType::kUint16, std::vector<int>{5}));
    EXPECT_EQ(TokenStream(link, 10, -1).index()->num_documents(), 1);
    std::filesystem::remove(directory_.file("link.idx"));
    std::filesystem::remove(prefix + ".idx");
    EXPECT_FAULT(fault([&] { TokenStream(link, 10, -1); }), "corpus.idx: is missing");
    // Bare ids have nothing beside them.
    std::filesystem::remove(prefix + ".json");
    EXPECT_EQ(TokenStream(link, 10, -1).format(), TokenFormat::kNanoGpt);
}

TEST_F(TokenStreamTest, LlmCInBothForms) {
    const TokenStream narrow(
        directory_.write("a.bin", llm_c_header(20240520, 1, 3) +
                                      bytes_of(std::vector<std::uint16_t>{5, 65535, 6})),
        65536, -1);
    EXPECT_EQ(narrow.format(), TokenFormat::kLlmC);
    EXPECT_EQ(read(narrow, 0, 3), (std::vector<std::int32_t>{5, 65535, 6}));
    EXPECT_EQ(starts(narrow, 0, 3), (std::vector<std::int64_t>{}));
    const TokenStream wide(
        directory_.write("b.bin", llm_c_header(20240801, 7, 2) +
                                      bytes_of(std::vector<std::uint32_t>{128001, 0})),
        128256, 128001);
    EXPECT_EQ(wide.type(), TokenType::kUint32);
    EXPECT_EQ(read(wide, 0, 2), (std::vector<std::int32_t>{128001, 0}));
    EXPECT_EQ(starts(wide, 0, 2), (std::vector<std::int64_t>{1}));
}

TEST_F(TokenStreamTest, HeadersThatDoNotFitAreRefused) {
    struct Case {
        std::string bytes;
        const char* want;
    };
    const std::string ids = bytes_of(std::vector<std::uint16_t>{1, 2, 3});
    const Case cases[] = {
        {"", "got an empty file"},
        {"abc", "got 3 bytes, want an even number"},
        {llm_c_header(20240520, 2, 3) + ids, "version: got 2, want 1"},
        {llm_c_header(20240801, 1, 3) + ids + ids, "version: got 1, want 7"},
        {llm_c_header(20240520, 1, 4) + ids, "got 3 tokens, want 4 as the header says"},
        {llm_c_header(20240520, 1, 0) + ids, "got 3 tokens, want 0"},
        {llm_c_header(20240520, 1, 3) + ids + "x", "got 7 bytes after the header, want a multiple"},
        {llm_c_header(20240520, 1, 0).substr(0, 100), "got 100 bytes, want 1024"},
    };
    for (const Case& c : cases) {
        const std::string path = directory_.write("x.bin", c.bytes);
        const std::string got = fault([&] { TokenStream(path, 10, -1); });
        EXPECT_FAULT(got, c.want);
        EXPECT_FAULT(got, path);
    }
}

TEST_F(TokenStreamTest, LlmCMayHoldMoreTokensThanItsHeaderCanSay) {
    const auto parse = [](std::uint32_t stated, std::uint64_t tokens) {
        const std::string header = llm_c_header(20240520, 1, stated);
        return parse_token_header(
            {reinterpret_cast<const std::byte*>(header.data()), header.size()}, 1024 + 2 * tokens,
            "x.bin");
    };
    EXPECT_EQ(parse(3'000'000'000u, 3'000'000'000u).bytes, 1024u);
    EXPECT_EQ(parse(5'000'000'000u % (1ull << 32), 5'000'000'000u).bytes, 1024u);
    EXPECT_FAULT(fault([&] { parse(3'000'000'000u, 3'000'000'001u); }), "got 3000000001 tokens");
}

TEST_F(TokenStreamTest, AnIdOutsideTheVocabularyIsFoundWhereItIsRead) {
    const std::string path =
        directory_.write("x.bin", bytes_of(std::vector<std::uint16_t>{1, 2, 3, 99, 4}));
    const TokenStream stream(path, 50, -1);
    EXPECT_EQ(read(stream, 0, 3), (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_FAULT(fault([&] { read(stream, 1, 4); }),
                 path + ": token 3 (byte 6): got id 99, want 0 to 49 (model.vocab_size 50)");
    directory_.write("y.bin", bytes_of(std::vector<std::int32_t>{1, -7}));
    directory_.write("y.idx", make_megatron_index(TokenType::kInt32, std::vector<std::int32_t>{2}));
    const TokenStream negative(directory_.file("y"), 50, -1);
    EXPECT_FAULT(fault([&] { read(negative, 0, 2); }), "token 1 (byte 4): got id -7");
}

TEST_F(TokenStreamTest, AFileThatShrinksIsAnErrorAndNoCrash) {
    const std::string path =
        directory_.write("x.bin", bytes_of(std::vector<std::uint16_t>(100000, 1)));
    const TokenStream stream(path, 50, -1);
    std::filesystem::resize_file(path, 1000);
    EXPECT_FAULT(fault([&] { read(stream, 90000, 100); }),
                 "got 1000 bytes, where there were 200000");
}

TEST_F(TokenStreamTest, ReadsStayWithinTheFile) {
    const TokenStream stream(directory_.write("x.bin", bytes_of(std::vector<std::uint16_t>{1, 2})),
                             50, -1);
    EXPECT_THROW(read(stream, 1, 2), Error);
    EXPECT_THROW(read(stream, -1, 1), Error);
    EXPECT_THROW(read(stream, INT64_MAX, 1), Error);
    EXPECT_TRUE(read(stream, 2, 0).empty());
}

TEST_F(TokenStreamTest, TheFingerprintTellsContentsApart) {
    const auto fingerprint = [&](const std::string& name, std::vector<std::uint16_t> ids) {
        return TokenStream(directory_.write(name, bytes_of(ids)), 50, -1).fingerprint();
    };
    const std::uint64_t want = fingerprint("a.bin", {1, 2, 3});
    EXPECT_EQ(fingerprint("b.bin", {1, 2, 3}), want);
    EXPECT_NE(fingerprint("c.bin", {1, 2, 4}), want);
    EXPECT_NE(fingerprint("d.bin", {1, 2, 3, 0}), want);
}

// Of this process, in bytes: what /proc calls resident, and pages brought in.
std::int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * 4096;
}

// The bytes of the file that the disk holds; a hole has none.
std::int64_t stored_bytes(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_blocks * 512;
}

TEST_F(TokenStreamTest, TenGigabytesTakeConstantMemory) {
    constexpr std::int64_t kTokens = 5'000'000'000, kDocument = 1'000'000;
    const std::string prefix = directory_.file("large");
    directory_.write("large.bin", "");
    std::filesystem::resize_file(prefix + ".bin", 2 * kTokens);
    if (stored_bytes(prefix + ".bin") > 1 << 20) GTEST_SKIP() << "no sparse files here";
    directory_.write("large.idx", make_megatron_index(TokenType::kUint16,
                                                      std::vector<std::int32_t>(5000, kDocument)));
    const std::int64_t before = resident_bytes();
    const auto begin = std::chrono::steady_clock::now();
    const TokenStream stream(prefix, 50, -1);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << "opened 10 GB in " << seconds.count() * 1e3 << " ms\n";
    RecordProperty("open_ms", std::to_string(seconds.count() * 1e3));
    EXPECT_EQ(stream.num_tokens(), kTokens);
    std::vector<std::int32_t> ids(2049);
    std::vector<std::int64_t> found;
    // 5,000 sequences, spread over all of the file: 20 MB and 5,000 * 2 pages at least, if they were kept.
    for (std::int64_t i = 0; i < 5000; ++i) {
        const std::int64_t first = i * kDocument - (i > 0 ? 1000 : 0);
        stream.read(first, ids);
        stream.document_starts(first, ids, found);
    }
    EXPECT_EQ(found.size(), 4999u);
    constexpr std::int64_t kMost = 4 << 20;
    EXPECT_LT(resident_bytes() - before, kMost);
}

}  // namespace
}  // namespace evenkeel
