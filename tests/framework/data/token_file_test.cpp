// Token sequences in a safetensors file.
#include "framework/data/token_file.h"

#include <vector>

#include "tests/framework/storage/safetensors_files.h"

namespace evenkeel {
namespace {

using testing::entry;
using testing::little_endian;

std::string bytes_of(const std::vector<std::int64_t>& ids, std::size_t size) {
    std::string bytes;
    for (const std::int64_t id : ids) {
        bytes += little_endian(static_cast<std::uint64_t>(id)).substr(0, size);
    }
    return bytes;
}

class TokenFile : public testing::SafetensorsTest {
  protected:
    // [2, 3] tokens behind another tensor of 4 bytes.
    std::string file(const std::string& type, const std::vector<std::int64_t>& ids) const {
        const std::size_t size = type == "I64" ? 8 : 4;
        const std::string header =
            "{" + entry("other", "F32", "1", "0,4") + "," +
            entry("tokens", type, "2,3", concat("4,", 4 + ids.size() * size)) + "}";
        return write(little_endian(header.size()) + header + "abcd" + bytes_of(ids, size));
    }
    static std::string fault(const std::string& path, std::int64_t vocab_size) {
        try {
            read_token_file(path, vocab_size);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
            return error.what();
        }
        return "";
    }
};

TEST_F(TokenFile, IsReadInBothWidths) {
    const std::vector<std::int64_t> ids{3, 0, 9, 7, 1, 2};
    for (const char* type : {"I32", "I64"}) {
        const Tensor tokens = read_token_file(file(type, ids), 10);
        ASSERT_EQ(tokens.shape(), (Shape{2, 3}));
        for (std::size_t i = 0; i < ids.size(); ++i) {
            EXPECT_EQ(tokens.data<std::int32_t>()[i], ids[i]) << type << " " << i;
        }
    }
}

TEST_F(TokenFile, LongerThanAPieceIsReadWhole) {
    std::vector<std::int64_t> ids(70000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i % 251);
    const std::string header = "{" + entry("tokens", "I64", "2,35000", "0,560000") + "}";
    const Tensor tokens =
        read_token_file(write(little_endian(header.size()) + header + bytes_of(ids, 8)), 251);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(tokens.data<std::int32_t>()[i], ids[i]) << i;
    }
}

TEST_F(TokenFile, WithAnIdOutsideTheVocabularyIsRefusedNamingThePlace) {
    EXPECT_NE(
        fault(file("I32", {0, 1, 2, 3, 10, 5}), 10).find("tokens [1, 1]: got 10, want 0 to 9"),
        std::string::npos);
    EXPECT_NE(fault(file("I32", {0, -1, 2, 3, 4, 5}), 10).find("got -1"), std::string::npos);
    // Whose lower half would pass.
    EXPECT_NE(fault(file("I64", {0, 1, 2, std::int64_t{1} << 32, 4, 5}), 10).find("got 4294967296"),
              std::string::npos);
}

TEST_F(TokenFile, OfAnotherTypeOrShapeOrWithoutTokensIsRefused) {
    EXPECT_NE(fault(file("F32", {0, 1, 2, 3, 4, 5}), 10).find("want I32 or I64"),
              std::string::npos);
    const auto shaped = [&](const std::string& name, const std::string& shape) {
        const std::string header = "{" + entry(name, "I32", shape, "0,24") + "}";
        return fault(write(testing::file_of(header, 24)), 1 << 30);
    };
    EXPECT_NE(shaped("tokens", "6").find("got shape [6]"), std::string::npos);
    EXPECT_NE(shaped("ids", "2,3").find("has no tensor tokens"), std::string::npos);
    const std::string empty = "{" + entry("tokens", "I32", "2,0", "0,0") + "}";
    EXPECT_NE(fault(write(testing::file_of(empty, 0)), 10).find("1 or more"), std::string::npos);
}

}  // namespace
}  // namespace evenkeel
