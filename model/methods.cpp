#include "framework/config_names.h"
#include "model/method.h"
#include "model/methods/registry.h"

namespace evenkeel {
namespace {

#define EVENKEEL_METHOD_ADDRESS(name) &name,
constexpr const Method* kMethods[] = {EVENKEEL_METHODS(EVENKEEL_METHOD_ADDRESS)};
#undef EVENKEEL_METHOD_ADDRESS

}  // namespace

std::span<const Method* const> methods() { return kMethods; }

void apply_method(const std::string& name, ModelConfig& config) {
    std::string known;
    std::vector<std::string> names;
    for (const Method* method : methods()) {
        known += concat(known.empty() ? "" : ", ", method->name);
        names.emplace_back(method->name);
        if (name != method->name) continue;
        const AttentionConfig defaults;
        AttentionConfig& attention = config.attention;
        attention.softmax_scale = defaults.softmax_scale;
        attention.softcap = defaults.softcap;
        attention.sink = defaults.sink;
        attention.sink_init = defaults.sink_init;
        attention.qk_clip_threshold = defaults.qk_clip_threshold;
        attention.qk_norm = defaults.qk_norm;
        config.sigma_reparam = false;
        if (config.architecture == Architecture::kNgpt) {
            config.architecture = Architecture::kPreNorm;
        }
        return method->configure(config);
    }
    const std::string nearest = nearest_name(name, names);
    throw_error(ErrorCode::kConfig, "ModelConfig",
                concat("model.method: got \"", name, "\", ",
                       nearest.empty() ? "" : concat("did you mean ", nearest, "? "),
                       "want one of ", known));
}

}  // namespace evenkeel
