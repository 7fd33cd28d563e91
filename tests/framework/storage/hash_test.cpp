#include "framework/storage/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace evenkeel {
namespace {

// Bytes 3, 10, 17, ..., as for the values below.
std::string counted(std::size_t bytes) {
    std::string text(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + 3);
    return text;
}

TEST(HashTest, GivesTheReferenceImplementationsValues) {
    EXPECT_EQ(hash_text(hash_of("")), "ef46db3751d8e999");
    EXPECT_EQ(hash_text(hash_of("abc")), "44bc2cf5ad770999");
    const std::vector<std::pair<std::size_t, const char*>> known = {
        {1, "1f25c8d0bc1f4bb6"},  {3, "31d2363f52e564c9"},   {4, "9bb64b7d66ee9fda"},
        {7, "9a7b149959ce60d8"},  {8, "dab99d95c6f90092"},   {31, "a2aa5f33cc4a6119"},
        {32, "23c3c17ef790fd97"}, {33, "50a7cfc7ba588784"},  {63, "5e3e54b431c7493c"},
        {64, "0eb64b3ef6eeb01f"}, {100, "a61f8d4c170fe531"}, {1000, "5f235fa033f1a3fb"}};
    for (const auto& [bytes, want] : known) {
        EXPECT_EQ(hash_text(hash_of(counted(bytes))), want) << bytes << " bytes";
    }
}

TEST(HashTest, IsTheSameHoweverTheBytesAreCut) {
    const std::string text = counted(1000);
    for (std::size_t piece : {1u, 3u, 31u, 32u, 33u, 64u, 999u}) {
        Hasher hasher;
        for (std::size_t at = 0; at < text.size(); at += piece) {
            hasher.add(text.data() + at, std::min(piece, text.size() - at));
        }
        EXPECT_EQ(hasher.value(), hash_of(text)) << "pieces of " << piece;
        EXPECT_EQ(hasher.bytes(), text.size());
    }
}

TEST(HashTest, EveryFlippedBitShows) {
    std::string text = counted(77);
    const std::uint64_t whole = hash_of(text);
    for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
        EXPECT_NE(hash_of(text), whole) << "bit " << bit;
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    }
}

TEST(HashTest, TextComesBackAndNothingElseIsTaken) {
    for (std::uint64_t hash :
         {std::uint64_t{0}, std::uint64_t{0x0123456789abcdef}, ~std::uint64_t{0}}) {
        EXPECT_EQ(parse_hash(hash_text(hash)), hash);
    }
    for (const char* text : {"", "0123456789abcde", "0123456789abcdeff", "0123456789ABCDEF",
                             "0123456789abcdeg", " 123456789abcdef", "0x23456789abcdef"}) {
        EXPECT_FALSE(parse_hash(text).has_value()) << text;
    }
}

}  // namespace
}  // namespace evenkeel
