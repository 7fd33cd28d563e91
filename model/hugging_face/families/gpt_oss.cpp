#include "framework/error.h"
#include "model/hugging_face/families.h"

namespace evenkeel::hugging_face {
namespace {

constexpr const char* kReason =
    "the feed-forward layers of a gpt_oss model are mixtures of experts, which are not supported; "
    "its attention (sinks, biases, windows) is";

}  // namespace

const Family kGptOss{
    .name = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .summary = "refused: its feed-forward layers are mixtures of experts",
    .read_config = [](const ConfigJson& json) -> ModelConfig {
        json.refuse(json.has("num_local_experts") ? "num_local_experts" : "model_type", kReason);
    },
    .write_config = [](const ModelConfig&,
                       ConfigJson&) { throw_error(ErrorCode::kConfig, "export", kReason); },
    .tensors = [](const ModelConfig&) { return std::vector<TensorMap>(); },
    .refused = true};

}  // namespace evenkeel::hugging_face
