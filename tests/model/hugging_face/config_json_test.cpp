// config.json of a Hugging Face folder, read with checks.
#include "model/hugging_face/config_json.h"

#include <gtest/gtest.h>

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

ConfigJson parsed(const std::string& text) { return ConfigJson::parse(text, "c.json"); }

template <typename Action>
std::string message(ErrorCode code, const Action& action) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    return "nothing was thrown";
}

TEST(ConfigJson, GivesValuesByTypeAndDefaultsForWhatIsMissingOrNull) {
    const ConfigJson json = parsed(
        R"({"i": 3, "f": 2.5, "b": true, "s": "x", "n": null, "l": ["a", "b"], "o": {"i": 7}})");
    EXPECT_EQ(json.integer("i"), 3);
    EXPECT_EQ(json.integer("n", 4), 4);
    EXPECT_EQ(json.number("i"), 3.0);
    EXPECT_EQ(json.number("f"), 2.5);
    EXPECT_TRUE(json.boolean("b", false));
    EXPECT_TRUE(json.boolean("none", true));
    EXPECT_EQ(json.text("s"), "x");
    EXPECT_FALSE(json.has("n"));
    EXPECT_EQ(json.texts("l"), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(json.section("o").integer("i"), 7);
    EXPECT_FALSE(json.section("none").has("i"));
}

TEST(ConfigJson, SaysWhichKeyIsMissingOrOfAnotherType) {
    const ConfigJson json =
        parsed(R"({"s": "x", "f": 2.5, "big": 18446744073709551615, "o": {"s": "y"}})");
    const auto says = [&](auto action, const std::string& want) {
        EXPECT_EQ(message(ErrorCode::kConfig, action), "[hugging_face] c.json: " + want);
    };
    says([&] { json.integer("none"); }, "none: got nothing: want an integer");
    says([&] { json.integer("s"); }, "s: got \"x\": want an integer");
    says([&] { json.integer("f"); }, "f: got 2.5: want an integer");
    says([&] { json.integer("big"); }, "big: got 18446744073709551615: want an integer");
    says([&] { json.section("o").integer("s"); }, "o.s: got \"y\": want an integer");
    says([&] { json.section("s"); }, "s: got \"x\": want an object");
    says([&] { json.texts("s"); }, "s: got \"x\": want a list of strings");
    says([&] { json.require("s", "z", "want z"); }, "s: got \"x\": want z");
}

TEST(ConfigJson, RefusesHostileText) {
    const auto refused = [&](const std::string& text) {
        return message(ErrorCode::kIo, [&] { parsed(text); });
    };
    EXPECT_NE(refused("").find("not a JSON object"), std::string::npos);
    EXPECT_NE(refused("[1]").find("not a JSON object"), std::string::npos);
    EXPECT_NE(refused("\xEF\xBB\xBF{}").find("not a JSON object"), std::string::npos);
    EXPECT_NE(refused(std::string("{}\0", 3)).find("not a JSON object"), std::string::npos);
    EXPECT_NE(refused(R"({"a": 1)").find("not JSON at byte"), std::string::npos);
    EXPECT_NE(refused(R"({"a": NaN})").find("not JSON at byte"), std::string::npos);
    EXPECT_NE(refused(R"({"a": 1e400})").find("not JSON"), std::string::npos);
    EXPECT_NE(refused(R"({"a": 1, "a": 2})").find("the key \"a\" twice"), std::string::npos);
    EXPECT_NE(refused(R"({"b": {"a": 1, "a": 1}})").find("the key \"a\" twice"), std::string::npos);
    const std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
    EXPECT_NE(refused(deep).find("nested more than 32 deep"), std::string::npos);
    EXPECT_NE(refused("{\"a\": \"" + std::string(5 << 20, 'x') + "\"}").find("bytes"),
              std::string::npos);
    // Equal keys of different objects are no duplicates.
    EXPECT_NO_THROW(parsed(R"({"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 1}, {"x": 1}]})"));
}

TEST(ConfigJson, KeepsTheOrderOfKeysAndReplacesInPlace) {
    ConfigJson json = parsed(R"({"z": 1, "a": [1, 2], "k": "x"})");
    json.set("a", 5);
    json.set("new", "text");
    json.erase("k");
    EXPECT_EQ(json.to_text(), "{\n  \"z\": 1,\n  \"a\": 5,\n  \"new\": \"text\"\n}\n");
    EXPECT_EQ(json.raw("z"), "1");
    EXPECT_EQ(json.raw("k"), "");
}

}  // namespace
}  // namespace evenkeel::hugging_face
