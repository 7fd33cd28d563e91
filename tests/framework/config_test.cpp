#include "framework/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "framework/config_names.h"
#include "framework/error.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel {
namespace {

constexpr const char* kColors[] = {"red", "green", "dark_blue"};

struct Inner {
    enum class Color { kRed, kGreen, kDarkBlue };
    double peak_lr = 0.003;
    Color color = Color::kGreen;
    void visit_fields(ConfigVisitor& v) {
        v.field("peak_lr", peak_lr, "the rate | its peak");
        v.choice("color", color, kColors, "a color");
    }
};

struct Outer {
    std::int64_t steps = 200;
    std::int64_t batch_size = 16;
    bool resume = false;
    std::string run_dir = "runs/default";
    Inner inner;
    void visit_fields(ConfigVisitor& v) {
        v.field("steps", steps, "how many steps");
        v.field("batch_size", batch_size, "sequences a step");
        v.field("resume", resume, "go on");
        v.field("run_dir", run_dir, "where to write");
        v.section("inner", inner, "inside");
    }
};

struct Root {
    Outer trainer;
    Inner schedule;
    void visit_fields(ConfigVisitor& v) {
        v.section("trainer", trainer, "the loop");
        v.section("schedule", schedule, "the rate");
    }
    VisitFields visit() {
        return [this](ConfigVisitor& v) { visit_fields(v); };
    }
};

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kConfig) << e.what();
        return e.what();
    }
    return "no error";
}

std::string parse_message(const std::string& json) {
    Root root;
    return message_of([&] { parse_config(root.visit(), json, "a.json"); });
}

std::string override_message(const std::string& assignment) {
    Root root;
    return message_of([&] { apply_override(root.visit(), assignment); });
}

TEST(ConfigTest, ReadsEveryTypeWithCommentsAndKeepsTheRest) {
    Root root;
    parse_config(root.visit(), R"({
        // a comment
        "trainer": {"steps": 12, "resume": true, "run_dir": "é",
                    "inner": {"color": "dark_blue"}},
        /* another */ "schedule": {"peak_lr": 1}
    })",
                 "a.json");
    EXPECT_EQ(root.trainer.steps, 12);
    EXPECT_TRUE(root.trainer.resume);
    EXPECT_EQ(root.trainer.run_dir, "é");
    EXPECT_EQ(root.trainer.inner.color, Inner::Color::kDarkBlue);
    EXPECT_EQ(root.schedule.peak_lr, 1.0);
    EXPECT_EQ(root.trainer.batch_size, 16);
    EXPECT_EQ(root.schedule.color, Inner::Color::kGreen);
}

TEST(ConfigTest, EmptyObjectIsAllDefaults) {
    Root root;
    EXPECT_NO_THROW(parse_config(root.visit(), "{}", "a.json"));
    EXPECT_EQ(root.trainer.steps, 200);
}

TEST(ConfigTest, UnknownKeyNamesTheNearest) {
    EXPECT_EQ(parse_message(R"({"trainer": {"bach_size": 1}})"),
              "[config] a.json: trainer.bach_size: unknown key, did you mean trainer.batch_size?");
    EXPECT_EQ(parse_message(R"({"trianer": {"steps": 1}})"),
              "[config] a.json: trianer: unknown key, did you mean trainer?");
    EXPECT_EQ(parse_message(R"({"schedule": {"colour": "red"}})"),
              "[config] a.json: schedule.colour: unknown key, did you mean schedule.color?");
}

TEST(ConfigTest, UnknownKeyNamesTheNearestOfOtherSections) {
    EXPECT_EQ(parse_message(R"({"trainer": {"lr": 1}})"),
              "[config] a.json: trainer.lr: unknown key, did you mean trainer.inner.peak_lr?");
    EXPECT_EQ(parse_message(R"({"schedule": {"batch_size": 1}})"),
              "[config] a.json: schedule.batch_size: unknown key, did you mean "
              "trainer.batch_size?");
    EXPECT_EQ(parse_message(R"({"steps": 1})"),
              "[config] a.json: steps: unknown key, did you mean trainer.steps?");
}

// All of a configuration's alarms have a threshold: the section decides.
TEST(ConfigTest, UnknownSectionOfAKnownNameNamesTheNearestSection) {
    ConfigNames names;
    names.sections = {"alarms", "alarms.max_logit", "alarms.logit_bound"};
    names.keys = {"alarms.max_logit.threshold", "alarms.logit_bound.threshold"};
    EXPECT_EQ(names.advice("alarms.logit_bond.threshold"),
              "did you mean alarms.logit_bound.threshold?");
    EXPECT_EQ(names.advice("alarms.logit_bond"), "did you mean alarms.logit_bound?");
}

TEST(ConfigTest, NearestNameIsNoneWhereNothingIsNear) {
    EXPECT_EQ(nearest_name("sigma_repram", {"plain", "sigma_reparam"}), "sigma_reparam");
    EXPECT_EQ(nearest_name("rmss", {"plain", "rms_shared", "rms"}), "rms");
    EXPECT_EQ(nearest_name("wombat", {"plain", "rms"}), "");
    EXPECT_EQ(nearest_name("", {}), "");
}

TEST(ConfigTest, UnknownKeyThatIsNearNothingListsTheSection) {
    EXPECT_EQ(parse_message(R"({"schedule": {"wombat": 1}})"),
              "[config] a.json: schedule.wombat: unknown key, want one of peak_lr, color");
}

TEST(ConfigTest, NamesThatAreNoSettingsSayWhy) {
    struct WithRefused {
        Outer trainer;
        void visit_fields(ConfigVisitor& v) {
            v.refused("speed", "no setting: it follows from steps");
            v.section("trainer", trainer, "the loop");
        }
    } root;
    const VisitFields visit = [&](ConfigVisitor& v) { root.visit_fields(v); };
    EXPECT_EQ(message_of([&] { parse_config(visit, R"({"speed": 3})", "a.json"); }),
              "[config] a.json: speed: no setting: it follows from steps");
    EXPECT_EQ(message_of([&] { apply_override(visit, "speed=3"); }),
              "[config] override \"speed=3\": speed: no setting: it follows from steps");
    EXPECT_EQ(to_markdown(visit).find("speed"), std::string::npos);
    EXPECT_EQ(to_json(visit).find("speed"), std::string::npos);
}

TEST(ConfigTest, DottedKeysAreNotPaths) {
    EXPECT_EQ(parse_message(R"({"trainer.steps": 1})"),
              "[config] a.json: trainer.steps: a key with a dot, want an object inside an object");
}

TEST(ConfigTest, WrongTypesSayBoth) {
    const auto steps = [](const std::string& value) {
        return parse_message(R"({"trainer": {"steps": )" + value + "}}");
    };
    const std::string prefix = "[config] a.json: trainer.steps: got ";
    EXPECT_EQ(steps(R"("12")"), prefix + R"(string "12", want integer)");
    EXPECT_EQ(steps("1.5"), prefix + "number 1.5, want integer");
    EXPECT_EQ(steps("2.0"), prefix + "number 2.0, want integer");
    EXPECT_EQ(steps("true"), prefix + "boolean true, want integer");
    EXPECT_EQ(steps("null"), prefix + "null, want integer");
    EXPECT_EQ(steps("{}"), prefix + "an object, want integer");
    EXPECT_EQ(steps("[1]"), prefix + "an array, want integer");
    EXPECT_EQ(parse_message(R"({"trainer": {"resume": 1}})"),
              "[config] a.json: trainer.resume: got integer 1, want boolean");
    EXPECT_EQ(parse_message(R"({"trainer": {"run_dir": 1}})"),
              "[config] a.json: trainer.run_dir: got integer 1, want string");
    EXPECT_EQ(parse_message(R"({"trainer": {"run_dir": "a\u0000b"}})"),
              "[config] a.json: trainer.run_dir: got string \"a\\u0000b\", want text without NUL");
    EXPECT_EQ(parse_message(R"({"schedule": {"peak_lr": "x"}})"),
              "[config] a.json: schedule.peak_lr: got string \"x\", want number");
    EXPECT_EQ(parse_message(R"({"trainer": 3})"),
              "[config] a.json: trainer: got integer 3, want an object");
    EXPECT_EQ(parse_message("[]"), "[config] a.json: got an array, want an object");
}

TEST(ConfigTest, IntegersKeepTheirWholeRange) {
    Root root;
    parse_config(root.visit(),
                 R"({"trainer": {"steps": 9223372036854775807,
                                 "batch_size": -9223372036854775808}})",
                 "a.json");
    EXPECT_EQ(root.trainer.steps, std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(root.trainer.batch_size, std::numeric_limits<std::int64_t>::min());
    for (const char* value : {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
                              "18446744073709551616", "1e30"}) {
        const std::string message = parse_message(concat(R"({"trainer": {"steps": )", value, "}}"));
        EXPECT_NE(message.find("want integer from -2^63 to 2^63 - 1"), std::string::npos)
            << message;
    }
}

TEST(ConfigTest, ChoicesListTheirNames) {
    const std::string want = R"(want one of "red", "green", "dark_blue")";
    EXPECT_EQ(parse_message(R"({"schedule": {"color": "blue"}})"),
              "[config] a.json: schedule.color: got string \"blue\", " + want);
    EXPECT_EQ(parse_message(R"({"schedule": {"color": 1}})"),
              "[config] a.json: schedule.color: got integer 1, " + want);
}

TEST(ConfigTest, DuplicateKeysAreErrors) {
    EXPECT_EQ(parse_message(R"({"trainer": {"steps": 1, "resume": true, "steps": 1}})"),
              "[config] a.json: trainer.steps: the key is there twice, want it once");
    EXPECT_EQ(parse_message(R"({"trainer": {}, "trainer": {}})"),
              "[config] a.json: trainer: the key is there twice, want it once");
}

TEST(ConfigTest, BrokenJsonNamesLineAndColumn) {
    const std::string message = parse_message("{\n  \"trainer\": {\"steps\": 1,}\n}");
    EXPECT_NE(message.find("[config] a.json: not JSON: parse error at line 2, column 26"),
              std::string::npos)
        << message;
    EXPECT_NE(parse_message("").find("not JSON"), std::string::npos);
    EXPECT_NE(parse_message("{} {}").find("not JSON"), std::string::npos);
    EXPECT_NE(parse_message(R"({"schedule": {"peak_lr": 1e999}})").find("not JSON"),
              std::string::npos);
    EXPECT_NE(parse_message("{\"trainer\": {\"run_dir\": \"\xff\"}}").find("not JSON"),
              std::string::npos);
    EXPECT_NE(parse_message(std::string(100000, '[')).find("not JSON"), std::string::npos);
    // The JSON library stops at a NUL, and would take what is before it for all.
    EXPECT_EQ(parse_message(std::string("{}\0{", 4)), "[config] a.json: not JSON: it holds a NUL");
}

TEST(ConfigTest, MessagesShowTheBeginningOfLongNames) {
    const std::string name(100000, 'a');
    EXPECT_LT(parse_message("{\"" + name + "\": 1}").size(), 1000u);
    EXPECT_LT(parse_message("{\"trainer\": " + name + "}").size(), 1000u);
}

TEST(ConfigTest, OverridesNeedNoQuotes) {
    Root root;
    for (const char* assignment :
         {"trainer.steps=7", "trainer.resume=true", "trainer.run_dir=runs/a=b c",
          "trainer.inner.color=red", "schedule.peak_lr=1e-3"}) {
        apply_override(root.visit(), assignment);
    }
    EXPECT_EQ(root.trainer.steps, 7);
    EXPECT_TRUE(root.trainer.resume);
    EXPECT_EQ(root.trainer.run_dir, "runs/a=b c");
    EXPECT_EQ(root.trainer.inner.color, Inner::Color::kRed);
    EXPECT_EQ(root.schedule.peak_lr, 1e-3);
    apply_override(root.visit(), R"(trainer.run_dir="quoted")");
    EXPECT_EQ(root.trainer.run_dir, "quoted");
    apply_override(root.visit(), "trainer.run_dir=12");
    EXPECT_EQ(root.trainer.run_dir, "12");
    apply_override(root.visit(), "trainer.run_dir=");
    EXPECT_EQ(root.trainer.run_dir, "");
}

TEST(ConfigTest, BadOverridesSayWhy) {
    EXPECT_EQ(override_message("trainer.steps=ten"),
              "[config] override \"trainer.steps=ten\": trainer.steps: got string \"ten\", want "
              "integer");
    EXPECT_EQ(override_message("trainer.step=1"),
              "[config] override \"trainer.step=1\": trainer.step: unknown key, did you mean "
              "trainer.steps?");
    EXPECT_EQ(override_message("trainer=1"),
              "[config] override \"trainer=1\": trainer: a section, want one of its keys");
    EXPECT_EQ(override_message("trainer.steps"),
              "[config] override \"trainer.steps\": want key=value");
    EXPECT_EQ(override_message("=1"), "[config] override \"=1\": want key=value");
    EXPECT_NE(override_message("trainer.steps=9223372036854775808").find("2^63"),
              std::string::npos);
    EXPECT_NE(override_message("schedule.color=blue").find("want one of \"red\""),
              std::string::npos);
    EXPECT_NE(override_message("trainer.run_dir=\xff").find("not UTF-8"), std::string::npos);
}

TEST(ConfigTest, PrintsInDeclarationOrder) {
    Root root;
    EXPECT_EQ(to_json(root.visit()), R"({
    "trainer": {
        "steps": 200,
        "batch_size": 16,
        "resume": false,
        "run_dir": "runs/default",
        "inner": {
            "peak_lr": 0.003,
            "color": "green"
        }
    },
    "schedule": {
        "peak_lr": 0.003,
        "color": "green"
    }
}
)");
}

TEST(ConfigTest, PrintedDoublesReadBackExactly) {
    for (double value : {0.1, 1.0 / 3.0, 1e-300, 4.9406564584124654e-324, 1.7976931348623157e308,
                         -0.0, 3.0, 0.1 + 0.2, 123456789012345680.0}) {
        Root written, read;
        written.schedule.peak_lr = value;
        parse_config(read.visit(), to_json(written.visit()), "a.json");
        EXPECT_EQ(std::bit_cast<std::uint64_t>(read.schedule.peak_lr),
                  std::bit_cast<std::uint64_t>(value))
            << value;
        EXPECT_TRUE(differing_paths(read.visit(), written.visit()).empty());
    }
}

TEST(ConfigTest, DocumentsEveryKey) {
    Root root;
    const std::string table = to_markdown(root.visit());
    EXPECT_EQ(table.substr(0, table.find('\n')), "| Key | Type | Default | Meaning |");
    EXPECT_NE(table.find("| `trainer.steps` | integer | `200` | how many steps |\n"),
              std::string::npos)
        << table;
    EXPECT_NE(table.find("| `trainer.inner.peak_lr` | number | `0.003` | the rate \\| its peak |"),
              std::string::npos)
        << table;
    EXPECT_NE(table.find(R"(| `schedule.color` | one of "red", "green", "dark_blue" | `"green"`)"),
              std::string::npos)
        << table;
}

TEST(ConfigTest, FindsDifferingPaths) {
    Root a, b;
    b.trainer.inner.peak_lr = 1.0;
    b.schedule.color = Inner::Color::kRed;
    EXPECT_EQ(differing_paths(a.visit(), b.visit()),
              (std::vector<std::string>{"trainer.inner.peak_lr", "schedule.color"}));
}

TEST(ConfigTest, LoadsAFileThenOverrides) {
    const std::string path = concat(::testing::TempDir(), "evenkeel_config_", ::getpid(), ".json");
    write_file_atomically(path, R"({"trainer": {"steps": 3, "batch_size": 4}})");
    Root root;
    load_config(root.visit(), path, {"trainer.steps=5", "trainer.steps=6"});
    EXPECT_EQ(root.trainer.steps, 6);
    EXPECT_EQ(root.trainer.batch_size, 4);
    std::remove(path.c_str());
}

TEST(ConfigTest, AFileThatCannotBeReadIsAConfigurationError) {
    Root root;
    const std::string missing =
        message_of([&] { load_config(root.visit(), "/nonexistent/a.json", {}); });
    EXPECT_NE(missing.find("/nonexistent/a.json: cannot open: No such file"), std::string::npos)
        << missing;
    const std::string directory = message_of([&] { load_config(root.visit(), "/", {}); });
    EXPECT_NE(directory.find("Is a directory"), std::string::npos) << directory;
}

TEST(ConfigNamesTest, EditDistanceCountsSwapsOnce) {
    EXPECT_EQ(edit_distance("", "abc"), 3);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
    EXPECT_EQ(edit_distance("setps", "steps"), 1);
    EXPECT_EQ(edit_distance("same", "same"), 0);
}

}  // namespace
}  // namespace evenkeel
