#include "framework/data/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>

#include "framework/error.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

using testing::TemporaryDirectory;

std::string fault(ErrorCode code, const std::function<void()>& f) {
    try {
        f();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    return "";
}

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(TokenizerTest, BytesAreTheirOwnTokens) {
    const auto bytes = make_tokenizer("bytes");
    EXPECT_EQ(bytes->vocab_size(), 256);
    EXPECT_EQ(bytes->end_of_document(), 0);
    const std::vector<std::int32_t> tokens{104, 195, 164, 10};
    EXPECT_EQ(bytes->encode("h\xc3\xa4\n"), tokens);
    EXPECT_EQ(bytes->decode(tokens), "h\xc3\xa4\n");
    EXPECT_EQ(bytes->decode(std::vector<std::int32_t>{65, 300, -1, 66}), "AB");
}

TEST(TokenizerTest, WhatIsNoneIsRefused) {
    const TemporaryDirectory directory;
    EXPECT_FAULT(fault(ErrorCode::kConfig, [] { make_tokenizer(""); }), "got nothing");
    EXPECT_FAULT(fault(ErrorCode::kConfig, [] { make_tokenizer("/none.model"); }),
                 "/none.model, which is no file");
    const std::string json = directory.write("tokenizer.json", "{}");
    EXPECT_FAULT(fault(ErrorCode::kConfig, [&] { make_tokenizer(json); }),
                 "a tokenizer of Hugging Face");
    const std::string junk = directory.write("junk.model", "this is no model");
    EXPECT_FAULT(fault(has_sentencepiece() ? ErrorCode::kIo : ErrorCode::kNotBuilt,
                       [&] { make_tokenizer(junk); }),
                 junk);
}

TEST(TokenDescriptionTest, SaysWhatItWasGiven) {
    const TokenDescription read =
        parse_token_description(to_json(TokenDescription{"corpus.model", 32000, 2}), "x.json");
    EXPECT_EQ(read.tokenizer, "corpus.model");
    EXPECT_EQ(read.vocab_size, 32000);
    EXPECT_EQ(read.end_of_document, 2);
}

TEST(TokenDescriptionTest, IsFoundBesideTheTokens) {
    const TemporaryDirectory directory;
    directory.write("a.json", to_json(TokenDescription{"a.model", 100, 2}));
    directory.write("b.json", to_json(TokenDescription{"bytes", 256, 0}));
    for (const char* name : {"a", "a.bin", "a.idx"}) {
        EXPECT_EQ(tokenizer_of(directory.file(name)), directory.file("a.model"));
    }
    EXPECT_EQ(tokenizer_of(directory.file("b.bin")), "bytes");
    EXPECT_EQ(tokenizer_of(directory.file("c.bin")), "");
}

TEST(TokenDescriptionTest, NamesNoFileElsewhere) {
    const TemporaryDirectory directory;
    for (const char* name : {"/etc/passwd", "../a.model", "x/a.model", ""}) {
        directory.write("a.json", to_json(TokenDescription{name, 100, 2}));
        EXPECT_FAULT(fault(ErrorCode::kIo, [&] { tokenizer_of(directory.file("a.bin")); }),
                     "want bytes or the name of a file beside it");
    }
}

TEST(TokenDescriptionTest, OthersAreRefused) {
    for (const char* json :
         {"", "[]", "{", "{}", R"({"tokenizer": 1, "vocab_size": 2, "end_of_document": 3})",
          R"({"tokenizer": "a", "vocab_size": "2", "end_of_document": 3})",
          R"({"tokenizer": "a", "vocab_size": 2.5, "end_of_document": 3})"}) {
        EXPECT_FAULT(fault(ErrorCode::kIo, [&] { parse_token_description(json, "x.json"); }),
                     "x.json")
            << json;
    }
}

}  // namespace
}  // namespace evenkeel
