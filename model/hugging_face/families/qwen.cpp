#include "model/hugging_face/families/qwen.h"

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;
constexpr std::int64_t kDefaultFirstWindowLayer = 28;
constexpr std::int64_t kMostLayers = 1 << 20;  // for a list of them; validation knows the limit

}  // namespace

void read_qwen_window(const ConfigJson& json, ModelConfig& config) {
    const bool used =
        json.boolean("use_sliding_window", false) && json.raw("sliding_window") != "null";
    const std::int64_t window = used ? json.integer("sliding_window", kDefaultWindow) : 0;
    std::vector<std::string> types = json.texts("layer_types");
    if (types.empty()) {
        if (!used) return;
        // The layers from this one on have the window.
        const std::int64_t first = json.integer("max_window_layers", kDefaultFirstWindowLayer);
        if (first >= config.num_layers) return;
        if (first > 0) {
            json.refuse("max_window_layers",
                        concat("the window must begin with the first layer, or with none of the ",
                               config.num_layers));
        }
        config.attention.window = window;
        return;
    }
    read_layer_types(json, types, window, config);
}

void write_qwen_window(const ModelConfig& config, ConfigJson& json) {
    const std::int64_t window = config.attention.window;
    EVENKEEL_CHECK_CODE(config.num_layers <= kMostLayers, ErrorCode::kConfig, "export",
                        "model.num_layers: got ", config.num_layers, ", want at most ",
                        kMostLayers);
    json.set("use_sliding_window", window > 0);
    if (window > 0) {
        json.set("sliding_window", window);
        json.set("max_window_layers", std::int64_t{0});
    } else {
        json.set_null("sliding_window");
        json.set("max_window_layers", config.num_layers);
    }
    json.set("layer_types", layer_types(config));
}

}  // namespace evenkeel::hugging_face
