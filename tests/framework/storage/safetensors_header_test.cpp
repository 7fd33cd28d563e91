// Which files the reader accepts, and what it says of the others.
#include <gtest/gtest.h>

#include "framework/storage/safetensors.h"
#include "tests/framework/storage/safetensors_files.h"
#include "tests/support/compare.h"

namespace evenkeel {
namespace {

using testing::entry;
using testing::file_of;
using testing::little_endian;
using testing::to_doubles;

class SafetensorsHeaderTest : public testing::SafetensorsTest {};

// ---- What the reference accepts, and so does this reader -------------------------------------------

TEST_F(SafetensorsHeaderTest, AcceptsAHeaderWithoutTensors) {
    EXPECT_EQ(header_fault("{}", 0), "");
}

TEST_F(SafetensorsHeaderTest, AcceptsWhiteSpaceAroundTheHeader) {
    EXPECT_EQ(header_fault(" \n\t{" + entry("a", "F32", "2", "0,8") + "}  \n ", 8), "");
}

TEST_F(SafetensorsHeaderTest, AcceptsAnyAlignment) {
    EXPECT_EQ(header_fault("{" + entry("a", "F32", "2", "0,8") + "} ", 8), "");
    const std::string header =
        "{" + entry("a", "U8", "1", "0,1") + "," + entry("b", "F32", "1", "1,5") + "}";
    const std::string path = write(file_of(header, 5));
    EXPECT_EQ(to_doubles(SafetensorsReader(path).read("b")).size(), 1u);
}

TEST_F(SafetensorsHeaderTest, AcceptsAHeaderInAnotherOrderThanTheData) {
    const std::string path = write(file_of(
        "{" + entry("late", "U8", "2", "3,5") + "," + entry("early", "U8", "3", "0,3") + "}", 5));
    const SafetensorsReader reader(path);
    ASSERT_EQ(reader.tensors().size(), 2u);
    EXPECT_EQ(reader.tensors()[0].name, "early");
    EXPECT_EQ(reader.info("late").begin, 3u);
}

TEST_F(SafetensorsHeaderTest, AcceptsScalarsAndTensorsWithoutElements) {
    const std::string header =
        "{" + entry("a", "F32", "", "0,4") + "," + entry("empty", "F32", "3,0", "4,4") + "," +
        entry("b", "F32", "1", "4,8") + "," + entry("end", "F32", "0", "8,8") + "}";
    const std::string path = write(file_of(header, 8));
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.read("a").shape(), Shape{});
    EXPECT_EQ(reader.read("empty").shape(), (Shape{3, 0}));
}

TEST_F(SafetensorsHeaderTest, AcceptsStrangeNamesWithoutControlCharacters) {
    EXPECT_EQ(header_fault("{" + entry("", "U8", "1", "0,1") + "}", 1), "");
    EXPECT_EQ(header_fault("{" + entry("../../x", "U8", "1", "0,1") + "}", 1), "");
    EXPECT_EQ(header_fault("{" + entry("größe", "U8", "1", "0,1") + "}", 1), "");
}

TEST_F(SafetensorsHeaderTest, AcceptsEveryTypeOfTheFormat) {
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

TEST_F(SafetensorsHeaderTest, ReadsMetadata) {
    const std::string path = write(file_of(R"({"__metadata__":{"format":"pt","x":""}})", 0));
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"x", ""}}));
    EXPECT_TRUE(reader.tensors().empty());
}

// ---- Lengths ---------------------------------------------------------------------------------------

TEST_F(SafetensorsHeaderTest, RejectsFilesTooShortForALength) {
    EXPECT_FAULT(fault(""), "got 0 bytes, want at least 8");
    EXPECT_FAULT(fault("1234567"), "got 7 bytes, want at least 8");
}

TEST_F(SafetensorsHeaderTest, RejectsHeaderLengthsOutOfRange) {
    EXPECT_FAULT(fault(little_endian(0)), "header length: got 0");
    EXPECT_FAULT(fault(little_endian(0) + "{}"), "header length: got 0");
    EXPECT_FAULT(fault(little_endian(3) + "{}"), "got 3, want at most the 2 bytes that follow");
    EXPECT_FAULT(fault(little_endian(100'000'001) + "{}"), "header length: got 100000001");
    // 8 + length wraps around.
    EXPECT_FAULT(fault(little_endian(~0ull) + "{}"), "header length: got 18446744073709551615");
    EXPECT_FAULT(fault(little_endian(~0ull - 7) + "{}"), "header length: got");
    EXPECT_FAULT(fault(little_endian(1ull << 63) + "{}"), "header length: got");
}

TEST_F(SafetensorsHeaderTest, RejectsDataThatIsTooShortOrTooLong) {
    const std::string header = "{" + entry("a", "F32", "2", "0,8") + "}";
    EXPECT_FAULT(header_fault(header, 7),
                 "got 7 bytes of data, want 8 as its header says (the file");
    EXPECT_FAULT(header_fault(header, 9), "got 9 bytes of data, want 8");
    EXPECT_FAULT(header_fault("{}", 1), "got 1 bytes of data, want 0");
}

TEST_F(SafetensorsHeaderTest, RejectsEveryTruncation) {
    const std::string whole = file_of("{" + entry("a", "F32", "2", "0,8") + "}", 8);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        EXPECT_NE(fault(whole.substr(0, size)), "") << "cut to " << size;
    }
}

// ---- Layout ----------------------------------------------------------------------------------------

TEST_F(SafetensorsHeaderTest, RejectsOverlapsAndHoles) {
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

TEST_F(SafetensorsHeaderTest, RejectsOffsetsThatDoNotFitTheShape) {
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

TEST_F(SafetensorsHeaderTest, RejectsProductsThatWrap) {
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

TEST_F(SafetensorsHeaderTest, RejectsSizesThatAreNotNaturalNumbers) {
    const auto shape = [&](const std::string& sizes) {
        return header_fault("{" + entry("a", "U8", sizes, "0,2") + "}", 2);
    };
    for (const char* sizes : {"-2", "-0", "2.0", "2e0", "\"2\"", "null", "true", "[2]", "{}",
                              "18446744073709551616", "-9223372036854775808", "-1,-2"}) {
        EXPECT_FAULT(shape(sizes), "in shape, want integers of 0 or more");
    }
}

TEST_F(SafetensorsHeaderTest, RejectsOffsetsThatAreNotTwoNaturalNumbers) {
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

TEST_F(SafetensorsHeaderTest, RejectsTooManyDimensions) {
    EXPECT_EQ(header_fault("{" + entry("a", "U8", "1,1,1,1,1,1,1,1", "0,1") + "}", 1), "");
    EXPECT_FAULT(header_fault("{" + entry("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") + "}", 1),
                 "more than 8 dimensions");
}

TEST_F(SafetensorsHeaderTest, RejectsTooManyTensors) {
    std::string header = "{";
    for (int i = 0; i < 131073; ++i) {
        header += (i == 0 ? "" : ",") + entry(std::to_string(i), "U8", "0", "0,0");
    }
    EXPECT_FAULT(header_fault(header + "}", 0), "more than 131072 tensors");
}

// ---- Names, fields, JSON ---------------------------------------------------------------------------

TEST_F(SafetensorsHeaderTest, RejectsDuplicateNames) {
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

TEST_F(SafetensorsHeaderTest, RejectsControlCharactersInNames) {
    for (const char* name : {"a\\u0000b", "\\u0000", "a\\nb", "\\u001b[2J", "\\u007f"}) {
        EXPECT_FAULT(header_fault("{" + entry(name, "U8", "1", "0,1") + "}", 1),
                     "a control character in the name");
    }
    EXPECT_FAULT(header_fault("{" + entry("a\nb", "U8", "1", "0,1") + "}", 1), "not JSON");
}

TEST_F(SafetensorsHeaderTest, RejectsUnknownTypes) {
    for (const char* dtype : {"f32", "F33", "", "F32 ", "FLOAT"}) {
        EXPECT_FAULT(header_fault("{" + entry("a", dtype, "1", "0,4") + "}", 4), "unknown dtype");
    }
}

TEST_F(SafetensorsHeaderTest, RejectsEntriesThatAreNotTheThreeFields) {
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

TEST_F(SafetensorsHeaderTest, RejectsMetadataThatIsNotStrings) {
    EXPECT_FAULT(header_fault(R"({"__metadata__":null})", 0), "null for \"__metadata__\"");
    EXPECT_FAULT(header_fault(R"({"__metadata__":[]})", 0), "an array");
    for (const char* value : {"1", "null", "{}", "[]", "true", "-1", "0.5"}) {
        EXPECT_FAULT(header_fault(concat(R"({"__metadata__":{"a":)", value, "}}"), 0),
                     "for the metadata key \"a\", want a string");
    }
}

TEST_F(SafetensorsHeaderTest, RejectsWhatIsNotAJsonObject) {
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

TEST_F(SafetensorsHeaderTest, RejectsDeepNestingAtItsFirstLevel) {
    const std::string deep(1'000'000, '[');
    EXPECT_FAULT(header_fault("{\"a\":" + deep, 0), "an array for \"a\"");
    EXPECT_FAULT(header_fault("{\"a\":{\"shape\":" + deep, 0), "an array in shape");
    std::string objects;
    for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
    EXPECT_NE(header_fault(objects, 0), "");
}

TEST_F(SafetensorsHeaderTest, RejectsMissingFilesAndDirectories) {
    EXPECT_THROW(SafetensorsReader("/nonexistent.safetensors"), Error);
    EXPECT_THROW(SafetensorsReader(directory_.path()), Error);
}

}  // namespace
}  // namespace evenkeel
