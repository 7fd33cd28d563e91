#include "model/hugging_face/folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "framework/error.h"
#include "framework/storage/file.h"
#include "model/hugging_face/finite.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOp = "hugging_face";
constexpr std::uint64_t kMaxConfigBytes = 4 << 20;
constexpr std::int64_t kMaxHeads = 1 << 20;  // in all layers
constexpr std::int64_t kPiece = 1 << 20;     // bytes compared at a time

// A few names for a message.
std::string listed(const std::vector<std::string>& names) {
    constexpr std::size_t kShown = 5;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
        text += concat(i == 0 ? "\"" : ", \"", names[i].substr(0, 120), "\"");
    }
    if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
    return text;
}

const Family& family_of(const ConfigJson& json) {
    const std::string name = json.text("model_type", "");
    const Family* family = find_family(name);
    if (family == nullptr) json.refuse("model_type", "want one of " + family_names());
    return *family;
}

// What is refused whatever the weights are; they need not be there for it.
const Family& checked_family(const ConfigJson& json) {
    if (json.has("quantization_config")) {
        json.refuse("quantization_config",
                    "quantised weights are not read; convert them to bf16 first");
    }
    const Family& family = family_of(json);
    if (family.refused) family.read_config(json);  // throws
    return family;
}

// Before a family looks at them: what it makes of so many layers may take long, or all memory.
void check_layers(const ConfigJson& json, const Shards& shards) {
    const std::int64_t layers = json.integer("num_hidden_layers", 0);
    const auto have = static_cast<std::int64_t>(shards.num_tensors());
    if (layers < 0 || layers > have) {
        json.refuse("num_hidden_layers", concat("the files hold only ", have, " tensors"));
    }
    const std::int64_t heads = json.integer("num_attention_heads", 1);
    if (heads < 1 || heads > kMaxHeads / std::max<std::int64_t>(layers, 1)) {
        json.refuse("num_attention_heads",
                    concat("want 1 or more, and at most ", kMaxHeads, " in all layers"));
    }
}

}  // namespace

bool is_folder(const std::string& directory) {
    if (!fs::is_regular_file(fs::path(directory) / "config.json")) return false;
    try {
        const ConfigJson json = read_config_json(directory);
        return json.has("model_type") || json.has("architectures");
    } catch (const Error&) {
        return false;  // whoever takes it for something else says what is wrong with it
    }
}

namespace {

// Rules are told with the keys of a run's configuration: which of the file's these are made of.
void check_config(const ModelConfig& config, const std::string& file) {
    try {
        config.validate(1);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::kConfig) throw;
        static constexpr std::pair<const char*, const char*> kKeys[] = {
            {"model.vocab_size", "vocab_size"},
            {"model.num_layers", "num_hidden_layers"},
            {"model.width", "hidden_size"},
            {"model.feed_forward_width", "intermediate_size"},
            {"model.max_seq_len", "max_position_embeddings"},
            {"model.norm_eps", "rms_norm_eps or layer_norm_eps"},
            {"model.attention.num_heads", "num_attention_heads"},
            {"model.attention.num_kv_heads", "num_key_value_heads"},
            {"model.attention.head_dim", "head_dim, or hidden_size over num_attention_heads"},
            {"model.attention.window", "sliding_window"},
            {"model.attention.rope", "rope_theta, rope_scaling or partial_rotary_factor"}};
        const std::string what = error.what();
        std::string key;
        for (const auto& [ours, theirs] : kKeys) {
            if (key.empty() && what.find(std::string(ours) + ":") != std::string::npos)
                key = theirs;
        }
        throw_error(
            ErrorCode::kConfig, kOp,
            concat(file, key.empty() ? "" : ": " + key, ": there is no such model: ", what));
    }
}

}  // namespace

ConfigJson read_config_json(const std::string& directory) {
    const fs::path path = fs::path(directory) / "config.json";
    EVENKEEL_CHECK_CODE(fs::is_regular_file(path), ErrorCode::kIo, kOp, path.string(),
                        ": no such file, want the configuration of a Hugging Face model");
    File file = File::open_for_reading(path.string());
    return ConfigJson::parse(file.read_rest(kMaxConfigBytes + 1), path.string());
}

Folder::Folder(const std::string& directory)
    : json_(read_config_json(directory)), family_(&checked_family(json_)), shards_(directory) {
    check_layers(json_, shards_);
    config_ = family_->read_config(json_);
    check_config(config_, json_.origin());
    EVENKEEL_CHECK_CODE(config_.num_layers <= static_cast<std::int64_t>(shards_.num_tensors()),
                        ErrorCode::kConfig, kOp, json_.origin(), ": got ", config_.num_layers,
                        " layers, but the files hold only ", shards_.num_tensors(), " tensors");
    maps_ = family_->tensors(config_);
    for (std::size_t i = 0; i < maps_.size(); ++i) index_[maps_[i].ours] = i;
    check_tensors();
    config_.type = dtype("embedding") == DType::kFloat32 ? ComputeType::kFp32 : ComputeType::kBf16;
}

void Folder::check_tensors() {
    std::set<std::string> wanted;
    std::vector<std::string> missing, surplus;
    for (const TensorMap& map : maps_) {
        for (const TensorMap::Theirs& theirs : map.theirs) {
            if (!wanted.insert(theirs.name).second) continue;
            if (!shards_.contains(theirs.name)) missing.push_back(theirs.name);
        }
    }
    for (const std::string& name : shards_.names()) {
        if (wanted.contains(name)) continue;
        const bool tied = config_.tied_embeddings && name == family_->tied_output;
        const bool ignored = family_->ignores != nullptr && family_->ignores(name);
        (tied || ignored ? left_out_ : surplus).push_back(name);
    }
    EVENKEEL_CHECK_CODE(missing.empty() && surplus.empty(), ErrorCode::kIo, kOp, origin(),
                        ": the files do not fit ", "a ", family_->name, " of this config.json:",
                        missing.empty() ? "" : " they lack " + listed(missing),
                        missing.empty() || surplus.empty() ? "" : ", and",
                        surplus.empty() ? "" : " the model has no " + listed(surplus));
    for (const TensorMap& map : maps_) {
        for (const TensorMap::Theirs& theirs : map.theirs) {
            const TensorInfo& info = shards_.info(theirs.name);
            EVENKEEL_CHECK_CODE(info.shape == theirs.shape, ErrorCode::kIo, kOp,
                                shards_.file_of(theirs.name).path(), ": tensor \"", theirs.name,
                                "\": got shape ", to_string(info.shape), ", want ",
                                to_string(theirs.shape), " as config.json says");
            EVENKEEL_CHECK_CODE(
                info.dtype == "F32" || info.dtype == "BF16" || info.dtype == "F16", ErrorCode::kIo,
                kOp, shards_.file_of(theirs.name).path(), ": tensor \"", theirs.name, "\": got ",
                info.dtype, ", want F32, BF16 or F16",
                info.dtype == "F64" ? "; cast it first" : " (quantised weights are not read)");
        }
        // One tensor here, so of one type: another could not be given back as it was.
        const std::string &first = map.theirs[0].name, type = shards_.info(first).dtype;
        for (const TensorMap::Theirs& theirs : map.theirs) {
            const std::string other = shards_.info(theirs.name).dtype;
            EVENKEEL_CHECK_CODE(other == type, ErrorCode::kIo, kOp,
                                shards_.file_of(theirs.name).path(), ": tensor \"", theirs.name,
                                "\": got ", other, ", want ", type, ", the type of \"", first,
                                "\", with which it makes up one tensor; cast one of them first");
        }
    }
    const bool has_copy =
        std::find(left_out_.begin(), left_out_.end(), family_->tied_output) != left_out_.end();
    if (has_copy) check_tied_output(map("embedding").theirs[0].name);
}

void Folder::check_tied_output(const std::string& embedding) const {
    const std::string output = family_->tied_output;
    const TensorInfo& a = shards_.info(embedding);
    const TensorInfo& b = shards_.info(output);
    bool equal = a.dtype == b.dtype && a.shape == b.shape;
    const DType dtype = *dtype_of_file_type(a.dtype);
    const std::int64_t step = kPiece / static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t count = num_elements(a.shape);
    for (std::int64_t at = 0; equal && at < count; at += step) {
        const std::int64_t n = std::min(step, count - at);
        const Tensor x = Tensor::uninitialized({n}, dtype), y = Tensor::uninitialized({n}, dtype);
        shards_.file_of(embedding).read_elements(embedding, at, x);
        shards_.file_of(output).read_elements(output, at, y);
        equal = std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
    }
    EVENKEEL_CHECK_CODE(
        equal, ErrorCode::kIo, kOp, origin(), ": tensor \"", output, "\" differs from \"",
        embedding, "\", and config.json says tie_word_embeddings; want them equal, or only one");
}

std::vector<std::string> Folder::names() const {
    std::vector<std::string> names;
    for (const TensorMap& map : maps_) names.push_back(map.ours);
    return names;
}

const TensorMap& Folder::map(const std::string& name) const {
    const auto found = index_.find(name);
    EVENKEEL_CHECK_CODE(found != index_.end(), ErrorCode::kIo, kOp, origin(),
                        ": the model has no parameter ", name);
    return maps_[found->second];
}

DType Folder::dtype(const std::string& name) const {
    return *dtype_of_file_type(shards_.info(map(name).theirs[0].name).dtype);
}

void Folder::read_piece(const TensorMap& map,
                        const TensorMap::Piece& piece,
                        const Tensor& out) const {
    const std::string& name = map.theirs[piece.theirs].name;
    const SafetensorsReader& file = shards_.file_of(name);
    file.read_elements(name, piece.begin, out);
    const std::int64_t bad = first_non_finite(out);
    if (bad >= 0) {
        throw_non_finite(file.path(), name,
                         position(piece.begin + bad, map.theirs[piece.theirs].shape));
    }
}

void Folder::read_slice(const std::string& name,
                        int dim,
                        std::int64_t begin,
                        std::int64_t end,
                        const Tensor& out) const {
    const TensorMap& made = map(name);
    const auto rank = static_cast<int>(made.shape.size());
    EVENKEEL_CHECK(0 <= dim && dim < rank && 0 <= begin && begin <= end && end <= made.shape[dim],
                   kOp, name, ": range: got ", begin, " to ", end, " of dimension ", dim,
                   ", want inside ", to_string(made.shape));
    Shape want = made.shape;
    want[dim] = end - begin;
    check_shape(kOp, name.c_str(), out, want);
    EVENKEEL_CHECK(out.is_contiguous(), kOp, name, ": want a contiguous output");
    if (made.pieces.size() == 1 && made.theirs[0].shape == made.shape) {
        const SafetensorsReader& file = shards_.file_of(made.theirs[0].name);
        file.read_slice(made.theirs[0].name, dim, begin, end, out);
        const std::int64_t bad = first_non_finite(out);
        if (bad < 0) return;
        Shape place = position(bad, want);
        place[dim] += begin;
        throw_non_finite(file.path(), made.theirs[0].name, place);
    }
    std::int64_t outer = 1, inner = 1;
    for (int i = 0; i < dim; ++i) outer *= made.shape[i];
    for (int i = dim + 1; i < rank; ++i) inner *= made.shape[i];
    const std::int64_t stride = made.shape[dim] * inner;
    const Tensor flat = out.view({out.numel()});
    // Neighbouring runs are one: the whole of a tensor that is cut along another dimension is read at once.
    const bool whole = end - begin == made.shape[dim];
    const std::int64_t runs = whole ? 1 : outer;
    const std::int64_t length = whole ? outer * stride : (end - begin) * inner;
    std::int64_t at = 0;
    for (std::int64_t run = 0; run < runs; ++run) {
        for (const TensorMap::Piece& piece :
             made.pieces_of(run * stride + (whole ? 0 : begin * inner), length)) {
            read_piece(made, piece, flat.slice(0, at, at + piece.count));
            at += piece.count;
        }
    }
}

}  // namespace evenkeel::hugging_face
