// The configuration of a run, as `evenkeel train --config FILE --set KEY=VALUE` reads it: the text of the file, then
// assignments, a byte 1 before each.
#include <vector>

#include "launch/run_config.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

constexpr char kBeforeAssignment = 1;

VisitFields visit(RunConfig& config) {
    return [&config](ConfigVisitor& v) { config.visit_fields(v); };
}

std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(kBeforeAssignment, begin), text.size());
        parts.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// A run writes its settings down and goes on from what it has written.
void read_again(RunConfig& config) {
    const std::string text = to_json(config);
    RunConfig again;
    parse_config(visit(again), text, "again");
    std::string differing;
    for (const std::string& path : differing_paths(visit(config), visit(again))) {
        differing += " " + path;
    }
    EVENKEEL_FUZZ_CHECK(differing.empty(), ":", differing);
    EVENKEEL_FUZZ_CHECK(to_json(again) == text);
}

// What a run does with it before anything is allocated.
void start(RunConfig& config, int ranks) {
    if (!accepted({ErrorCode::kConfig}, [&] { config.validate(ranks); })) return;
    const ModelConfig& model = config.model;
    EVENKEEL_FUZZ_CHECK(parameter_count(model) > 0, ": ", parameter_count(model));
    EVENKEEL_FUZZ_CHECK(
        config.trainer.accumulation(static_cast<int>(ranks / config.parallel.tensor_parallel)) > 0);
    model.layer_attention(model.num_layers - 1).validate(config.parallel.tensor_parallel);
    model.warnings();
    alarm_rules(config.alarms, model);
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    const std::vector<std::string> parts = fuzz::split(fuzz::text_of(data, size));
    RunConfig config;
    const auto visit = fuzz::visit(config);
    if (!fuzz::accepted({ErrorCode::kConfig}, [&] { parse_config(visit, parts[0], "run"); })) {
        return 0;
    }
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto apply = [&] { apply_override(visit, parts[i]); };
        if (!fuzz::accepted({ErrorCode::kConfig}, apply)) return 0;
    }
    fuzz::read_again(config);
    compact_text(config);
    for (const int ranks : {1, 4}) fuzz::start(config, ranks);
    return 0;
}
