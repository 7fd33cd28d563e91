#include "framework/storage/json_depth.h"

#include <gtest/gtest.h>

#include "framework/error.h"
#include "framework/storage/hash.h"
#include "framework/storage/manifest.h"
#include "framework/training/run_state.h"

namespace evenkeel {
namespace {

std::string nested(int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
}

TEST(JsonDepthTest, CountsWhatStandsInOneAnother) {
    EXPECT_FALSE(is_nested_deeper("", 0));
    EXPECT_FALSE(is_nested_deeper("1", 0));
    EXPECT_TRUE(is_nested_deeper("[]", 0));
    EXPECT_FALSE(is_nested_deeper("[[],{},[]]", 2));
    EXPECT_TRUE(is_nested_deeper("[[],{\"a\":[]}]", 2));
    EXPECT_FALSE(is_nested_deeper(nested(kMaxJsonDepth)));
    EXPECT_TRUE(is_nested_deeper(nested(kMaxJsonDepth + 1)));
}

TEST(JsonDepthTest, BracketsInStringsDoNotCount) {
    EXPECT_FALSE(is_nested_deeper(R"({"[[[":"{{{","\"[[":"\\"})", 1));
    EXPECT_TRUE(is_nested_deeper(R"({"a\\":[[]]})", 2));
    EXPECT_FALSE(is_nested_deeper("\"\\", 0));
}

// Without a limit the functions that write values would take all of the stack.
TEST(JsonDepthTest, FilesOfACheckpointThatAreNestedDeeplyAreRefused) {
    constexpr int kDeep = 100000;
    const std::string body =
        "{\n  \"format\": 1,\n  \"step\": 5,\n  \"after\": \"\",\n  \"layout\": {\"a\": " +
        nested(kDeep) + "},\n  \"files\": {}";
    const std::string manifest = body + ",\n  \"xxh64\": \"" + hash_text(hash_of(body)) + "\"\n}\n";
    EXPECT_THROW(parse_manifest(manifest, "manifest.json"), Error);
    EXPECT_THROW(parse_run_state("{\"model\":" + nested(kDeep) + "}", "trainer.json"), Error);
}

// Numbers that fit no integer are refused, not converted.
TEST(RunStateTest, WantsIntegers) {
    RunState state;
    state.step = 20;
    state.model = state.settings = "{}";
    const std::string text = to_json(state);
    EXPECT_EQ(to_json(parse_run_state(text, "trainer.json")), text);
    const std::string step = "\"step\": 20";
    ASSERT_NE(text.find(step), std::string::npos) << text;
    for (const char* number : {"1e300", "20.0", "true", "18446744073709551615", "-1", "null"}) {
        std::string other = text;
        other.replace(text.find(step), step.size(), concat("\"step\": ", number));
        EXPECT_THROW(parse_run_state(other, "trainer.json"), Error) << number;
    }
    std::string other = text;
    const std::string fingerprint = "\"data_fingerprint\": \"0\"";
    ASSERT_NE(text.find(fingerprint), std::string::npos) << text;
    other.replace(text.find(fingerprint), fingerprint.size(), "\"data_fingerprint\": \" 0x1z\"");
    EXPECT_THROW(parse_run_state(other, "trainer.json"), Error);
}

}  // namespace
}  // namespace evenkeel
