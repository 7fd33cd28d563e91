// config.json of a Hugging Face folder, up to the tensors that such a model has.
#include <vector>

#include "model/hugging_face/config_json.h"
#include "model/hugging_face/family.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

using namespace hugging_face;

// What a folder with this many tensors would let pass (folder.cpp).
constexpr std::int64_t kMostLayers = 64, kMostHeads = 1024;

void check_map(const TensorMap& map) {
    std::int64_t elements = 0;
    for (const TensorMap::Piece& piece : map.pieces) {
        EVENKEEL_FUZZ_CHECK(piece.theirs < map.theirs.size(), ": ", map.ours);
        const std::int64_t all = num_elements(map.theirs[piece.theirs].shape);
        EVENKEEL_FUZZ_CHECK(piece.begin >= 0 && piece.count >= 0 && piece.begin <= all &&
                                piece.count <= all - piece.begin,
                            ": ", map.ours);
        elements += piece.count;
    }
    EVENKEEL_FUZZ_CHECK(elements == num_elements(map.shape), ": ", map.ours, ": ", elements, " of ",
                        to_string(map.shape));
}

void read(const ConfigJson& json) {
    const auto refusals = {ErrorCode::kConfig, ErrorCode::kIo};
    const auto name = accepted(refusals, [&] { return json.text("model_type", ""); });
    const Family* family = name ? find_family(*name) : nullptr;
    if (family == nullptr) return;
    const auto layers = accepted(refusals, [&] { return json.integer("num_hidden_layers", 0); });
    if (!layers || *layers < 0 || *layers > kMostLayers) return;
    const auto config = accepted(refusals, [&] { return family->read_config(json); });
    if (!config || !accepted(refusals, [&] { config->validate(1); })) return;
    if (config->num_layers > kMostLayers || config->attention.num_heads > kMostHeads) return;
    const auto maps = accepted(refusals, [&] { return family->tensors(*config); });
    if (maps) {
        for (const TensorMap& map : *maps) check_map(map);
    }
    ConfigJson written;
    if (!accepted(refusals, [&] { family->write_config(*config, written); })) return;
    accepted(refusals, [&] { family->read_config(written); });
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    using hugging_face::ConfigJson;
    const std::string text(fuzz::text_of(data, size));
    const auto json = fuzz::accepted({evenkeel::ErrorCode::kIo},
                                     [&] { return ConfigJson::parse(text, "config.json"); });
    if (!json) return 0;
    const std::string written = json->to_text();
    EVENKEEL_FUZZ_CHECK(ConfigJson::parse(written, "again").to_text() == written);
    fuzz::read(*json);
    return 0;
}
