#include "model/hugging_face/shards.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "framework/error.h"
#include "framework/storage/file.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOp = "hugging_face";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 64 << 20;
constexpr std::size_t kMaxFiles = 512;  // each stays open

bool is_plain_name(const std::string& name) {
    return name.size() <= 255 && name.ends_with(".safetensors") && name[0] != '.' &&
           std::none_of(name.begin(), name.end(), [](char c) {
               return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
           });
}

// Names from a file are shown without what a terminal would obey.
std::string shown(std::string name) {
    name = name.substr(0, 120);
    for (char& c : name) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return "\"" + name + "\"";
}

// What a folder without safetensors files has in their place, as the reason to refuse it.
std::string other_format(const std::string& directory) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
        const std::string name = entry.path().filename().string();
        const std::string extension = entry.path().extension().string();
        if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
            return concat(name,
                          " is a pickle, which may run any code when it is read; save the model ",
                          "as safetensors first (save_pretrained with safe_serialization=True)");
        }
        if (extension == ".gguf" || extension == ".h5" || extension == ".msgpack") {
            return name + " is of a format that is not read";
        }
        if (name == "adapter_model.safetensors") {
            return "it holds an adapter, not a model; merge it into its base model first";
        }
    }
    return "it has no weights";
}

// A name that can't be looked at, as a link that leads to itself, is named.
bool is_there(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    EVENKEEL_CHECK_CODE(!error || status.type() == fs::file_type::not_found, ErrorCode::kIo, kOp,
                        path.string(), ": cannot look at it: ", error.message());
    return fs::exists(status);
}

}  // namespace

Shards::Shards(const std::string& directory) : directory_(directory) {
    const fs::path index = fs::path(directory) / kIndex, single = fs::path(directory) / kSingle;
    if (is_there(index)) {
        open_indexed(index.string());
        return;
    }
    EVENKEEL_CHECK_CODE(is_there(single), ErrorCode::kIo, kOp, directory, ": want ", kSingle,
                        " or ", kIndex, ": ", other_format(directory));
    add(kSingle);
}

void Shards::open_indexed(const std::string& path) {
    EVENKEEL_CHECK_CODE(is_there(path) && fs::is_regular_file(path), ErrorCode::kIo, kOp, path,
                        ": want a file");
    File file = File::open_for_reading(path);
    EVENKEEL_CHECK_CODE(file.size() <= kMaxIndexBytes, ErrorCode::kIo, kOp, path, ": got ",
                        file.size(), " bytes, want at most ", kMaxIndexBytes);
    const ShardIndex index = parse_shard_index(file.read_rest(kMaxIndexBytes), path);
    std::set<std::string> names;
    for (const auto& [tensor, name] : index.files) {
        EVENKEEL_CHECK_CODE(is_plain_name(name), ErrorCode::kIo, kOp, path, ": the file of ",
                            shown(tensor), ": got ", shown(name),
                            ", want the plain name of a .safetensors file");
        names.insert(name);
        EVENKEEL_CHECK_CODE(names.size() <= kMaxFiles, ErrorCode::kIo, kOp, path,
                            ": got more than ", kMaxFiles, " files");
    }
    EVENKEEL_CHECK_CODE(names.contains(kSingle) || !is_there(fs::path(directory_) / kSingle),
                        ErrorCode::kIo, kOp, directory_, ": holds both ", kSingle, " and ", kIndex,
                        ", which does not name it; remove the one that is not the model");
    for (const std::string& name : names) add(name);
    check_index(index, path);
}

void Shards::check_index(const ShardIndex& index, const std::string& origin) const {
    for (const auto& [tensor, name] : index.files) {
        const auto found = file_of_.find(tensor);
        EVENKEEL_CHECK_CODE(found != file_of_.end(), ErrorCode::kIo, kOp, origin, ": tensor ",
                            shown(tensor), " is not in ", name);
        const std::string file = fs::path(found->second->path()).filename().string();
        EVENKEEL_CHECK_CODE(file == name, ErrorCode::kIo, kOp, origin, ": tensor ", shown(tensor),
                            ": got ", name, ", but it is in ", file);
    }
    for (const auto& [tensor, reader] : file_of_) {
        EVENKEEL_CHECK_CODE(index.files.contains(tensor), ErrorCode::kIo, kOp, reader->path(),
                            ": holds the tensor ", shown(tensor),
                            ", which the index does not name");
    }
    if (!index.total_size) return;
    std::uint64_t file_bytes = 0;
    for (const auto& reader : files_) file_bytes += fs::file_size(reader->path());
    EVENKEEL_CHECK_CODE(
        index.total_size == bytes_ || index.total_size == file_bytes, ErrorCode::kIo, kOp, origin,
        ": metadata.total_size: got ", *index.total_size, ", want ", bytes_,
        ", the bytes of all tensors: index and files may be of different versions (remove "
        "total_size if they are not)");
}

void Shards::add(const std::string& file) {
    const fs::path path = fs::path(directory_) / file;
    EVENKEEL_CHECK_CODE(fs::exists(path), ErrorCode::kIo, kOp, path.string(),
                        ": is missing, and the index names it");
    EVENKEEL_CHECK_CODE(fs::is_regular_file(path), ErrorCode::kIo, kOp, path.string(),
                        ": want a file");
    files_.push_back(std::make_unique<SafetensorsReader>(path.string()));
    const SafetensorsReader* reader = files_.back().get();
    for (const TensorInfo& info : reader->tensors()) {
        const auto [found, is_new] = file_of_.emplace(info.name, reader);
        EVENKEEL_CHECK_CODE(is_new, ErrorCode::kIo, kOp, path.string(), ": holds the tensor ",
                            shown(info.name), ", which ", found->second->path(), " holds too");
        bytes_ += info.end - info.begin;
    }
}

std::vector<std::string> Shards::names() const {
    std::vector<std::string> names;
    for (const auto& file : files_) {
        for (const TensorInfo& info : file->tensors()) names.push_back(info.name);
    }
    return names;
}

const SafetensorsReader& Shards::file_of(const std::string& name) const {
    const auto found = file_of_.find(name);
    EVENKEEL_CHECK_CODE(found != file_of_.end(), ErrorCode::kIo, kOp, directory_,
                        ": has no tensor ", shown(name));
    return *found->second;
}

}  // namespace evenkeel::hugging_face
