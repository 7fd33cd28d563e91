#include "framework/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "framework/checkpoint.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;
using testing::TemporaryDirectory;
using testing::to_doubles;

std::string little_endian(std::uint64_t value) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &value, 8);
    return bytes;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
    return little_endian(header.size()) + header + std::string(data_bytes, '\x01');
}

std::string entry(const std::string& name,
                  const std::string& dtype,
                  const std::string& shape,
                  const std::string& offsets) {
    return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                  "],\"data_offsets\":[", offsets, "]}");
}

class SafetensorsTest : public ::testing::Test {
  protected:
    std::string write(const std::string& bytes) const {
        const std::string path = directory_.file("file.safetensors");
        std::remove(path.c_str());  // truncating it would make some file systems flush
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    // "" when the file is accepted.
    std::string fault(const std::string& bytes) const {
        const std::string path = write(bytes);
        try {
            const SafetensorsReader reader(path);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kIo) << e.what();
            EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
            return e.what();
        }
        return "";
    }
    std::string header_fault(const std::string& header, std::size_t data_bytes) const {
        return fault(file_of(header, data_bytes));
    }
    TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// ---- What the reference accepts, and so does this reader -------------------------------------------

TEST_F(SafetensorsTest, AcceptsAHeaderWithoutTensors) { EXPECT_EQ(header_fault("{}", 0), ""); }

TEST_F(SafetensorsTest, AcceptsWhiteSpaceAroundTheHeader) {
    EXPECT_EQ(header_fault(" \n\t{" + entry("a", "F32", "2", "0,8") + "}  \n ", 8), "");
}

TEST_F(SafetensorsTest, AcceptsAnyAlignment) {
    EXPECT_EQ(header_fault("{" + entry("a", "F32", "2", "0,8") + "} ", 8), "");
    const std::string header =
        "{" + entry("a", "U8", "1", "0,1") + "," + entry("b", "F32", "1", "1,5") + "}";
    const std::string path = write(file_of(header, 5));
    EXPECT_EQ(to_doubles(SafetensorsReader(path).read("b")).size(), 1u);
}

TEST_F(SafetensorsTest, AcceptsAHeaderInAnotherOrderThanTheData) {
    const std::string path = write(file_of(
        "{" + entry("late", "U8", "2", "3,5") + "," + entry("early", "U8", "3", "0,3") + "}", 5));
    const SafetensorsReader reader(path);
    ASSERT_EQ(reader.tensors().size(), 2u);
    EXPECT_EQ(reader.tensors()[0].name, "early");
    EXPECT_EQ(reader.info("late").begin, 3u);
}

TEST_F(SafetensorsTest, AcceptsScalarsAndTensorsWithoutElements) {
    const std::string header =
        "{" + entry("a", "F32", "", "0,4") + "," + entry("empty", "F32", "3,0", "4,4") + "," +
        entry("b", "F32", "1", "4,8") + "," + entry("end", "F32", "0", "8,8") + "}";
    const std::string path = write(file_of(header, 8));
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.read("a").shape(), Shape{});
    EXPECT_EQ(reader.read("empty").shape(), (Shape{3, 0}));
}

TEST_F(SafetensorsTest, AcceptsStrangeNamesWithoutControlCharacters) {
    EXPECT_EQ(header_fault("{" + entry("", "U8", "1", "0,1") + "}", 1), "");
    EXPECT_EQ(header_fault("{" + entry("../../x", "U8", "1", "0,1") + "}", 1), "");
    EXPECT_EQ(header_fault("{" + entry("größe", "U8", "1", "0,1") + "}", 1), "");
}

TEST_F(SafetensorsTest, AcceptsEveryTypeOfTheFormat) {
    const std::pair<const char*, std::size_t> types[] = {
        {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
        {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
        {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
        {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
        {"I64", 64},        {"U64", 64}};
    for (const auto& [name, bits] : types) {
        // Four elements fill whole bytes at any number of bits.
        const std::size_t bytes = 4 * bits / 8;
        EXPECT_EQ(header_fault("{" + entry("a", name, "4", concat("0,", bytes)) + "}", bytes), "")
            << name;
    }
}

TEST_F(SafetensorsTest, ReadsMetadata) {
    const std::string path = write(file_of(R"({"__metadata__":{"format":"pt","x":""}})", 0));
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"x", ""}}));
    EXPECT_TRUE(reader.tensors().empty());
}

// ---- Lengths ---------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, RejectsFilesTooShortForALength) {
    EXPECT_FAULT(fault(""), "got 0 bytes, want at least 8");
    EXPECT_FAULT(fault("1234567"), "got 7 bytes, want at least 8");
}

TEST_F(SafetensorsTest, RejectsHeaderLengthsOutOfRange) {
    EXPECT_FAULT(fault(little_endian(0)), "header length: got 0");
    EXPECT_FAULT(fault(little_endian(0) + "{}"), "header length: got 0");
    EXPECT_FAULT(fault(little_endian(3) + "{}"), "got 3, want at most the 2 bytes that follow");
    EXPECT_FAULT(fault(little_endian(100'000'001) + "{}"), "header length: got 100000001");
    // 8 + length wraps around.
    EXPECT_FAULT(fault(little_endian(~0ull) + "{}"), "header length: got 18446744073709551615");
    EXPECT_FAULT(fault(little_endian(~0ull - 7) + "{}"), "header length: got");
    EXPECT_FAULT(fault(little_endian(1ull << 63) + "{}"), "header length: got");
}

TEST_F(SafetensorsTest, RejectsDataThatIsTooShortOrTooLong) {
    const std::string header = "{" + entry("a", "F32", "2", "0,8") + "}";
    EXPECT_FAULT(header_fault(header, 7),
                 "got 7 bytes of data, want 8 as its header says (the file");
    EXPECT_FAULT(header_fault(header, 9), "got 9 bytes of data, want 8");
    EXPECT_FAULT(header_fault("{}", 1), "got 1 bytes of data, want 0");
}

TEST_F(SafetensorsTest, RejectsEveryTruncation) {
    const std::string whole = file_of("{" + entry("a", "F32", "2", "0,8") + "}", 8);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        EXPECT_NE(fault(whole.substr(0, size)), "") << "cut to " << size;
    }
}

// ---- Layout ----------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, RejectsOverlapsAndHoles) {
    EXPECT_FAULT(
        header_fault("{" + entry("a", "U8", "4", "0,4") + "," + entry("b", "U8", "4", "2,6") + "}",
                     6),
        "data of \"b\" from byte 2, want from 4 (tensors overlap)");
    EXPECT_FAULT(
        header_fault("{" + entry("a", "U8", "4", "0,4") + "," + entry("b", "U8", "4", "0,4") + "}",
                     4),
        "overlap");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "4", "1,5") + "}", 5),
                 "from byte 1, want from 0 (a hole)");
    EXPECT_FAULT(
        header_fault("{" + entry("a", "U8", "2", "0,2") + "," + entry("b", "U8", "2", "3,5") + "}",
                     5),
        "(a hole)");
    EXPECT_FAULT(
        header_fault(
            "{" + entry("a", "U8", "4", "0,4") + "," + entry("empty", "U8", "0", "2,2") + "}", 4),
        "overlap");
}

TEST_F(SafetensorsTest, RejectsOffsetsThatDoNotFitTheShape) {
    EXPECT_FAULT(header_fault("{" + entry("a", "F32", "2", "0,4") + "}", 4),
                 "data_offsets 0 to 4, want 8 bytes as in F32 [2]");
    EXPECT_FAULT(header_fault("{" + entry("a", "F32", "2", "8,0") + "}", 8), "data_offsets 8 to 0");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "4", "18446744073709551612,0") + "}", 4),
                 "data_offsets 18446744073709551612 to 0");
    EXPECT_FAULT(header_fault("{" + entry("a", "F32", "1000000", "0,4000000") + "}", 8),
                 "cut short");
    EXPECT_FAULT(header_fault("{" + entry("a", "F4", "3", "0,2") + "}", 2), "whole bytes");
    EXPECT_FAULT(header_fault("{" + entry("a", "F6_E2M3", "2", "0,2") + "}", 2), "whole bytes");
}

TEST_F(SafetensorsTest, RejectsProductsThatWrap) {
    const auto shape = [&](const std::string& sizes, const std::string& offsets) {
        return header_fault("{" + entry("a", "F32", sizes, offsets) + "}", 4);
    };
    EXPECT_FAULT(shape("4294967296,4294967296", "0,0"), "a shape of 2^63 bits or more");
    EXPECT_FAULT(shape("4194305,4194305,211106198978564", "0,4"), "a shape of 2^63 bits or more");
    EXPECT_FAULT(shape("140737488355328,131072", "0,0"), "a shape of 2^63 bits or more");
    // Also beside a zero, where the true product is zero.
    EXPECT_FAULT(shape("0,140737488355328,140737488355328", "0,0"), "a shape of 2^63 bits or more");
    EXPECT_FAULT(shape("18446744073709551615,18446744073709551615,0", "0,0"), "less than 2^48");
    EXPECT_FAULT(shape("0,18446744073709551615", "0,0"), "less than 2^48");
    EXPECT_FAULT(shape("281474976710656", "0,0"), "less than 2^48");
}

TEST_F(SafetensorsTest, RejectsSizesThatAreNotNaturalNumbers) {
    const auto shape = [&](const std::string& sizes) {
        return header_fault("{" + entry("a", "U8", sizes, "0,2") + "}", 2);
    };
    for (const char* sizes : {"-2", "-0", "2.0", "2e0", "\"2\"", "null", "true", "[2]", "{}",
                              "18446744073709551616", "-9223372036854775808", "-1,-2"}) {
        EXPECT_FAULT(shape(sizes), "in shape, want integers of 0 or more");
    }
}

TEST_F(SafetensorsTest, RejectsOffsetsThatAreNotTwoNaturalNumbers) {
    const auto offsets = [&](const std::string& values) {
        return header_fault("{" + entry("a", "U8", "2", values) + "}", 2);
    };
    for (const char* values : {"-2,0", "0,2.0", "0,2e0", "0,\"2\"", "0,null", "[0],2"}) {
        EXPECT_FAULT(offsets(values), "in data_offsets, want two integers of 0 or more");
    }
    EXPECT_FAULT(offsets(""), "0 data_offsets, want two");
    EXPECT_FAULT(offsets("0"), "1 data_offsets, want two");
    EXPECT_FAULT(offsets("0,1,2"), "more than two data_offsets");
}

TEST_F(SafetensorsTest, RejectsTooManyDimensions) {
    EXPECT_EQ(header_fault("{" + entry("a", "U8", "1,1,1,1,1,1,1,1", "0,1") + "}", 1), "");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") + "}", 1),
                 "more than 8 dimensions");
}

TEST_F(SafetensorsTest, RejectsTooManyTensors) {
    std::string header = "{";
    for (int i = 0; i < 131073; ++i) {
        header += (i == 0 ? "" : ",") + entry(std::to_string(i), "U8", "0", "0,0");
    }
    EXPECT_FAULT(header_fault(header + "}", 0), "more than 131072 tensors");
}

// ---- Names, fields, JSON ---------------------------------------------------------------------------

TEST_F(SafetensorsTest, RejectsDuplicateNames) {
    EXPECT_FAULT(
        header_fault("{" + entry("a", "U8", "1", "0,1") + "," + entry("a", "U8", "1", "0,1") + "}",
                     1),
        "the name \"a\" twice");
    EXPECT_FAULT(
        header_fault("{" + entry("a", "U8", "9", "7,16") + "," + entry("a", "U8", "1", "0,1") + "}",
                     1),
        "the name \"a\" twice");
    EXPECT_FAULT(header_fault(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice");
    EXPECT_FAULT(header_fault(R"({"__metadata__":{"a":"1","a":"1"}})", 0),
                 "the metadata key \"a\" twice");
}

TEST_F(SafetensorsTest, RejectsControlCharactersInNames) {
    for (const char* name : {"a\\u0000b", "\\u0000", "a\\nb", "\\u001b[2J", "\\u007f"}) {
        EXPECT_FAULT(header_fault("{" + entry(name, "U8", "1", "0,1") + "}", 1),
                     "a control character in the name");
    }
    EXPECT_FAULT(header_fault("{" + entry("a\nb", "U8", "1", "0,1") + "}", 1), "not JSON");
}

TEST_F(SafetensorsTest, RejectsUnknownTypes) {
    for (const char* dtype : {"f32", "F33", "", "F32 ", "FLOAT"}) {
        EXPECT_FAULT(header_fault("{" + entry("a", dtype, "1", "0,4") + "}", 4), "unknown dtype");
    }
}

TEST_F(SafetensorsTest, RejectsEntriesThatAreNotTheThreeFields) {
    const auto entry_fault = [&](const std::string& value) {
        return header_fault("{\"a\":" + value + "}", 1);
    };
    EXPECT_FAULT(entry_fault(R"({"shape":[1],"data_offsets":[0,1]})"), "no dtype");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","data_offsets":[0,1]})"), "no shape");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","shape":[1]})"), "no data_offsets");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})"),
                 "unknown field \"x\"");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})"),
                 "the field \"dtype\" twice");
    EXPECT_FAULT(entry_fault(R"({"dtype":null,"shape":[1],"data_offsets":[0,1]})"), "null");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})"), "the number 1");
    EXPECT_FAULT(entry_fault(R"({"dtype":"U8","shape":{},"data_offsets":[0,1]})"), "an object");
    for (const char* value : {R"(["U8",[1],[0,1]])", "null", "1", "-1", "1.5", "\"x\"", "true"}) {
        EXPECT_FAULT(entry_fault(value), "for \"a\", want an object");
    }
}

TEST_F(SafetensorsTest, RejectsMetadataThatIsNotStrings) {
    EXPECT_FAULT(header_fault(R"({"__metadata__":null})", 0), "null for \"__metadata__\"");
    EXPECT_FAULT(header_fault(R"({"__metadata__":[]})", 0), "an array");
    for (const char* value : {"1", "null", "{}", "[]", "true", "-1", "0.5"}) {
        EXPECT_FAULT(header_fault(concat(R"({"__metadata__":{"a":)", value, "}}"), 0),
                     "for the metadata key \"a\", want a string");
    }
}

TEST_F(SafetensorsTest, RejectsWhatIsNotAJsonObject) {
    const std::string good = "{" + entry("a", "U8", "1", "0,1") + "}";
    EXPECT_FAULT(header_fault("\xef\xbb\xbf" + good, 1), "not a JSON object");  // byte order mark
    EXPECT_FAULT(header_fault(good + std::string(8, '\0'), 1), "not a JSON object");
    EXPECT_FAULT(header_fault("[]", 0), "not a JSON object");
    EXPECT_FAULT(header_fault("  ", 0), "not a JSON object");
    EXPECT_FAULT(header_fault(good + "{}", 1), "not JSON");
    EXPECT_FAULT(header_fault(good + ",", 1), "not JSON");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "1", "0,1") + ",}", 1), "not JSON");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "1", "0,1"), 1), "not JSON");
    EXPECT_FAULT(header_fault("{'a':1}", 0), "not JSON");
    EXPECT_FAULT(header_fault("{" + entry("\\ud800", "U8", "1", "0,1") + "}", 1), "not JSON");
    EXPECT_FAULT(header_fault("{" + entry("\xff", "U8", "1", "0,1") + "}", 1), "not JSON");
    EXPECT_FAULT(header_fault("{/* c */" + entry("a", "U8", "1", "0,1") + "}", 1), "not JSON");
}

TEST_F(SafetensorsTest, RejectsDeepNestingAtItsFirstLevel) {
    const std::string deep(1'000'000, '[');
    EXPECT_FAULT(header_fault("{\"a\":" + deep, 0), "an array for \"a\"");
    EXPECT_FAULT(header_fault("{\"a\":{\"shape\":" + deep, 0), "an array in shape");
    std::string objects;
    for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
    EXPECT_NE(header_fault(objects, 0), "");
}

TEST_F(SafetensorsTest, RejectsMissingFilesAndDirectories) {
    EXPECT_THROW(SafetensorsReader("/nonexistent.safetensors"), Error);
    EXPECT_THROW(SafetensorsReader(directory_.path()), Error);
}

// ---- Reading ---------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, ReadsBackWhatWasWritten) {
    const Tensor a = gaussian({3, 5, 7}, DType::kFloat32, 1);
    const Tensor b = gaussian({4, 3}, DType::kBFloat16, 2);
    const Tensor c = Tensor::full({5}, 42.0f, DType::kInt32);
    const Tensor scalar = Tensor::full({}, 2.5f, DType::kFloat32);
    const Tensor empty = Tensor::zeros({0, 3}, DType::kBFloat16);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"b", b}, {"scalar", scalar}, {"empty", empty}, {"a", a}, {"c", c}},
                      {{"format", "pt"}, {"note", "a \"quoted\"\nline"}});
    const SafetensorsReader reader(path);
    EXPECT_TRUE(same_bits(reader.read("a"), a));
    EXPECT_TRUE(same_bits(reader.read("b"), b));
    EXPECT_TRUE(same_bits(reader.read("c"), c));
    EXPECT_TRUE(same_bits(reader.read("scalar"), scalar));
    EXPECT_EQ(reader.read("empty").shape(), (Shape{0, 3}));
    EXPECT_EQ(reader.metadata().at("note"), "a \"quoted\"\nline");
    EXPECT_EQ(reader.tensors().front().name, "b");
    EXPECT_TRUE(reader.contains("a"));
    EXPECT_FALSE(reader.contains("d"));
    try {
        reader.info("d");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "has no tensor d among its 5");
    }
}

TEST_F(SafetensorsTest, SlicesAnyDimension) {
    const Tensor whole = gaussian({4, 6, 5}, DType::kFloat32, 3);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"pad", gaussian({3}, DType::kBFloat16, 4)}, {"a", whole}});
    const SafetensorsReader reader(path);
    for (int dim = 0; dim < 3; ++dim) {
        for (std::int64_t begin = 0; begin <= whole.size(dim); ++begin) {
            for (std::int64_t end = begin; end <= whole.size(dim); ++end) {
                const Tensor want = whole.slice(dim, begin, end).clone();
                for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
                    const Tensor got = testing::poisoned(want.shape(), dtype);
                    reader.read_slice("a", dim, begin, end, got);
                    EXPECT_TRUE(same_bits(got, want.to(dtype)))
                        << "dim " << dim << ", " << begin << " to " << end;
                }
            }
        }
    }
}

TEST_F(SafetensorsTest, ConvertsLargeTensorsPieceByPiece) {
    const Tensor wide = gaussian({2, 70001}, DType::kFloat32, 5);
    const Tensor narrow = wide.to(DType::kBFloat16);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"odd", narrow.slice(1, 0, 1)}, {"wide", wide}, {"narrow", narrow}});
    const SafetensorsReader reader(path);
    const Tensor got_narrow = testing::poisoned({2, 70001}, DType::kBFloat16);
    reader.read("wide", got_narrow);
    EXPECT_TRUE(same_bits(got_narrow, narrow));
    const Tensor got_wide = testing::poisoned({2, 70001}, DType::kFloat32);
    reader.read("narrow", got_wide);
    EXPECT_TRUE(same_bits(got_wide, narrow.to(DType::kFloat32)));
}

TEST_F(SafetensorsTest, ConvertsEveryHalf) {
    std::string data;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        data += static_cast<char>(bits);
        data += static_cast<char>(bits >> 8);
    }
    const std::string header = "{" + entry("a", "F16", "65536", "0,131072") + "}";
    const std::string path = write(little_endian(header.size()) + header + data);
    const Tensor got = SafetensorsReader(path).read("a");
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        double want =
            exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
        if (exponent == 31) want = mantissa == 0 ? INFINITY : NAN;
        if ((bits & 0x8000u) != 0) want = -want;
        const float value = got.data<float>()[bits];
        ASSERT_TRUE(std::isnan(want) ? std::isnan(value) : value == want)
            << "bits " << bits << ": got " << value << ", want " << want;
        ASSERT_EQ(std::signbit(value), std::signbit(want)) << "bits " << bits;
    }
}

TEST_F(SafetensorsTest, HalvesAreKeptWhereTheyAreAskedFor) {
    const Tensor halves = testing::gaussian({5, 7}, DType::kFloat16, 1);
    const std::string path = directory_.file("halves");
    write_safetensors(path, {{"a", halves}, {"wide", halves.to(DType::kFloat32)}}, {});
    const SafetensorsReader reader(path);
    const Tensor got = testing::poisoned({5, 7}, DType::kFloat16);
    reader.read("a", got);
    EXPECT_TRUE(same_bits(got, halves));
    EXPECT_TRUE(same_bits(reader.read("a"), halves.to(DType::kFloat32)));
    EXPECT_THROW(reader.read("wide", got), Error) << "fp32 is not cut to fp16";
}

TEST_F(SafetensorsTest, ConvertsDoubles) {
    const double values[] = {0.1, -1e300, 3.0};
    const std::string header = "{" + entry("a", "F64", "3", "0,24") + "}";
    const std::string path =
        write(little_endian(header.size()) + header +
              std::string(reinterpret_cast<const char*>(values), sizeof(values)));
    const Tensor got = SafetensorsReader(path).read("a");
    EXPECT_EQ(got.data<float>()[0], 0.1f);
    EXPECT_EQ(got.data<float>()[1], -INFINITY);
    EXPECT_EQ(got.data<float>()[2], 3.0f);
}

TEST_F(SafetensorsTest, RefusesTypesThatDoNotConvert) {
    const std::string header = "{" + entry("i64", "I64", "1", "0,8") + "," +
                               entry("i32", "I32", "1", "8,12") + "," +
                               entry("f32", "F32", "1", "12,16") + "}";
    const std::string path = write(file_of(header, 16));
    const SafetensorsReader reader(path);
    const auto fault_of = [&](const std::string& name, DType dtype) -> std::string {
        try {
            reader.read(name, Tensor::zeros({1}, dtype));
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kIo);
            return e.what();
        }
        return "";
    };
    EXPECT_FAULT(fault_of("i64", DType::kFloat32), "i64 is I64, which does not convert to fp32");
    EXPECT_FAULT(fault_of("i64", DType::kInt32), "does not convert to int32");
    EXPECT_FAULT(fault_of("i32", DType::kFloat32), "does not convert to fp32");
    EXPECT_FAULT(fault_of("f32", DType::kInt32), "does not convert to int32");
    EXPECT_EQ(fault_of("i32", DType::kInt32), "");
}

TEST_F(SafetensorsTest, RejectsSlicesAndOutputsThatDoNotFit) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", gaussian({4, 6}, DType::kFloat32, 1)}});
    const SafetensorsReader reader(path);
    const Tensor out = Tensor::zeros({2, 6}, DType::kFloat32);
    EXPECT_NO_THROW(reader.read_slice("a", 0, 2, 4, out));
    EXPECT_THROW(reader.read_slice("a", 0, 3, 5, out), Error);
    EXPECT_THROW(reader.read_slice("a", 0, -1, 1, out), Error);
    EXPECT_THROW(reader.read_slice("a", 0, 1, 2, out), Error);
    EXPECT_THROW(reader.read_slice("a", 2, 0, 1, out), Error);
    EXPECT_THROW(reader.read_slice("a", -1, 0, 1, out), Error);
    EXPECT_THROW(reader.read("a", out), Error);
    const Tensor strided = Tensor::zeros({4, 12}, DType::kFloat32).slice(1, 0, 6);
    EXPECT_THROW(reader.read("a", strided), Error);
}

TEST_F(SafetensorsTest, NoticesAFileThatShrinksWhileOpen) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", gaussian({64}, DType::kFloat32, 1)}});
    const SafetensorsReader reader(path);
    ASSERT_EQ(::truncate(path.c_str(), 100), 0);
    try {
        reader.read("a");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "a.safetensors: ends at byte 100");
    }
}

// ---- Writing ---------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, WritesExactlyTheseBytes) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"x", Tensor::full({2}, 1.0f, DType::kBFloat16)}}, {{"k", "v"}});
    std::string header = R"({"__metadata__":{"k":"v"},)"
                         R"("x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
    header.append((8 - header.size() % 8) % 8, ' ');
    EXPECT_EQ(read_file(path), little_endian(header.size()) + header + "\x80\x3f\x80\x3f");
}

TEST_F(SafetensorsTest, WriterTakesStridedTensors) {
    const Tensor strided = gaussian({4, 6}, DType::kFloat32, 1).slice(1, 2, 5);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", strided}});
    EXPECT_TRUE(same_bits(SafetensorsReader(path).read("a"), strided.clone()));
}

TEST_F(SafetensorsTest, WriterRefusesWhatReadersWould) {
    const std::string path = directory_.file("a.safetensors");
    const Tensor a = Tensor::zeros({1}, DType::kFloat32);
    const auto code_of = [&](const std::vector<std::pair<std::string, Tensor>>& tensors,
                             const SafetensorsMetadata& metadata = {}) {
        try {
            write_safetensors(path, tensors, metadata);
        } catch (const Error& e) {
            return e.code();
        }
        return ErrorCode::kInternal;
    };
    EXPECT_EQ(code_of({{"a", a}, {"a", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"__metadata__", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a\n", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"\xff", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a", a}}, {{"k", "\xff"}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a", Tensor::zeros(Shape(9, 1), DType::kFloat32)}}),
              ErrorCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, WriterWantsTheDeclaredTensorsInOrder) {
    const std::string path = directory_.file("a.safetensors");
    const Tensor a = Tensor::zeros({2}, DType::kFloat32);
    SafetensorsWriter writer(path, {{"a", DType::kFloat32, {2}}, {"b", DType::kBFloat16, {3}}}, {});
    EXPECT_THROW(writer.write("b", Tensor::zeros({3}, DType::kBFloat16)), Error);
    EXPECT_THROW(writer.write("a", Tensor::zeros({3}, DType::kFloat32)), Error);
    EXPECT_THROW(writer.write("a", Tensor::zeros({2}, DType::kBFloat16)), Error);
    writer.write("a", a);
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(SafetensorsReader{path}, Error) << "an unfinished file must not be valid";
    writer.write("b", Tensor::zeros({3}, DType::kBFloat16));
    EXPECT_THROW(writer.write("c", a), Error);
    writer.finish();
    EXPECT_NO_THROW(SafetensorsReader{path});
}

TEST_F(SafetensorsTest, AFullDiskSaysSo) {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "needs /dev/full";
    try {
        write_safetensors("/dev/full", {{"a", Tensor::zeros({4}, DType::kFloat32)}});
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "/dev/full: cannot write: No space left on device");
    }
}

TEST_F(SafetensorsTest, WritingWhereNothingCanBeCreatedSaysSo) {
    try {
        write_safetensors("/nonexistent/a.safetensors", {});
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "/nonexistent/a.safetensors: cannot create: No such");
    }
}

}  // namespace
}  // namespace evenkeel
