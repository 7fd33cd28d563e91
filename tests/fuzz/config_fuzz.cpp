// The parser of configurations by itself, for a small one with every kind of value: the text of a file, then
// assignments, a byte 1 before each.
#include <algorithm>
#include <vector>

#include "framework/config.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

constexpr char kBeforeAssignment = 1;

struct Inner {
    double rate = 0.5;
    std::string name = "a";
    void visit_fields(ConfigVisitor& v) {
        v.field("rate", rate, "a number");
        v.field("name", name, "a text");
        v.refused("speed", "no setting: rate is");
    }
};

struct Outer {
    enum class Color { kRed, kGreen };
    Color color = Color::kRed;
    bool wide = false;
    std::int64_t steps = 10, step_size = 1;
    Inner inner;
    void visit_fields(ConfigVisitor& v) {
        static constexpr const char* kColors[] = {"red", "green"};
        v.choice("color", color, kColors, "one of two");
        v.field("wide", wide, "yes | no");
        v.field("steps", steps, "a count");
        v.field("step_size", step_size, "another");
        v.section("inner", inner, "one level deeper");
    }
};

struct Root {
    std::int64_t seed = 1;
    Outer outer;
    VisitFields visit() {
        return [this](ConfigVisitor& v) {
            v.field("seed", seed, "a number");
            v.section("outer", outer, "a section");
        };
    }
};

std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(kBeforeAssignment, begin), text.size());
        parts.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    const std::vector<std::string> parts = fuzz::split(fuzz::text_of(data, size));
    fuzz::Root root;
    const auto parse = [&] { parse_config(root.visit(), parts[0], "file"); };
    if (!fuzz::accepted({ErrorCode::kConfig}, parse)) return 0;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto apply = [&] { apply_override(root.visit(), parts[i]); };
        if (!fuzz::accepted({ErrorCode::kConfig}, apply)) return 0;
    }
    const std::string text = to_json(root.visit());
    fuzz::Root again;
    parse_config(again.visit(), text, "again");
    EVENKEEL_FUZZ_CHECK(to_json(again.visit()) == text);
    EVENKEEL_FUZZ_CHECK(differing_paths(root.visit(), again.visit()).empty());
    to_markdown(root.visit());
    return 0;
}
