// The sliding window as Qwen's configurations say it.
#pragma once

#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {

// use_sliding_window, sliding_window, max_window_layers and layer_types.
void read_qwen_window(const ConfigJson& json, ModelConfig& config);
void write_qwen_window(const ModelConfig& config, ConfigJson& json);

}  // namespace evenkeel::hugging_face
