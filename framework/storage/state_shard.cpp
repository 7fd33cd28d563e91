#include "framework/storage/state_shard.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/sharded_source.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kOp = "state";
constexpr const char* kExtension = ".safetensors";

bool is_whole(const TensorPiece& piece) {
    const PieceExtent& e = piece.extent;
    return !e.is_run && e.begin == 0 && e.end == piece.global_shape.at(e.dim);
}

Shape shape_in_file(const TensorPiece& piece) {
    if (piece.extent.is_run) return {piece.data.numel()};
    Shape shape = piece.global_shape;
    shape.at(piece.extent.dim) = piece.extent.end - piece.extent.begin;
    return shape;
}

// "NAME-00002-of-00003.safetensors" gives {2, 3}; {0, 0} for anything else.
std::pair<int, int> numbers_of(const std::string& file, const std::string& name) {
    int index = 0, count = 0;
    const std::size_t at = name.size() + 1;
    if (!file.starts_with(name + "-")) return {0, 0};
    const char* end = file.data() + file.size();
    const auto first = std::from_chars(file.data() + at, end, index);
    if (first.ec != std::errc() || end - first.ptr < 4) return {0, 0};
    const auto second = std::from_chars(first.ptr + 4, end, count);
    if (second.ec != std::errc() || index < 1 || count < 2 || index > count) return {0, 0};
    return file == shard_name(name, index - 1, count) ? std::pair(index, count) : std::pair(0, 0);
}

struct StateFiles {
    bool has_single = false;
    std::vector<std::pair<int, int>> shards;
};

StateFiles files_of(const std::string& directory, const std::string& name) {
    StateFiles found;
    std::error_code error;
    fs::directory_iterator it(directory, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string file = it->path().filename().string();
        found.has_single |= file == name + kExtension;
        const auto numbers = numbers_of(file, name);
        if (numbers.first > 0) found.shards.push_back(numbers);
    }
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, kOp, directory, ": cannot list: ", error.message());
    std::sort(found.shards.begin(), found.shards.end());
    return found;
}

}  // namespace

std::string shard_name(const std::string& name, int index, int count) {
    if (count == 1) return name + kExtension;
    const auto digits = [](int number) {
        const std::string text = std::to_string(number);
        return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
    };
    return concat(name, "-", digits(index + 1), "-of-", digits(count), kExtension);
}

ManifestFile write_shard(const std::string& directory, const StateShard& shard) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    Json pieces = Json::object();
    for (const TensorPiece& piece : shard.pieces) {
        declarations.push_back({piece.name, piece.data.dtype(), shape_in_file(piece)});
        if (is_whole(piece)) continue;
        Json& entry = pieces[piece.name];
        entry = {{"shape", piece.global_shape},
                 {"dim", piece.extent.dim},
                 {"begin", piece.extent.begin},
                 {"end", piece.extent.end}};
        if (piece.extent.is_run) entry["first"] = piece.extent.first;
    }
    SafetensorsMetadata metadata = shard.metadata;
    if (!pieces.empty()) metadata["pieces"] = pieces.dump();
    SafetensorsWriter writer(directory + "/" + shard.file, declarations, metadata);
    for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
        const TensorPiece& piece = shard.pieces[i];
        writer.write(piece.name,
                     piece.extent.is_run ? piece.data.view(declarations[i].shape) : piece.data);
    }
    writer.finish();
    return {shard.file, writer.bytes(), writer.hash()};
}

bool has_state(const std::string& directory, const std::string& name) {
    std::error_code ignored;
    if (!fs::is_directory(directory, ignored)) return false;
    const StateFiles files = files_of(directory, name);
    return files.has_single || !files.shards.empty();
}

std::unique_ptr<TensorSource> open_state(const std::string& directory, const std::string& name) {
    const StateFiles files = files_of(directory, name);
    const std::string single = directory + "/" + name + kExtension;
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, kOp, what...);
    };
    check(!files.has_single || files.shards.empty(), single, ": is there beside shards of it");
    if (files.shards.empty()) {  // or nothing: opening says so
        return std::make_unique<ShardedSource>(single, std::vector<std::string>{single});
    }
    const int count = files.shards.front().second;
    std::vector<std::string> paths;
    for (int i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::string path = directory + "/" + shard_name(name, i, count);
        check(at < files.shards.size() && files.shards[at] == std::pair(i + 1, count), path,
              ": is missing, or there are files of another number of shards");
        paths.push_back(path);
    }
    check(files.shards.size() == paths.size(), directory, "/", name,
          "-*: there are files of more than one number of shards");
    return std::make_unique<ShardedSource>(
        concat(directory, "/", name, "-*-of-",
               shard_name(name, count - 1, count).substr(name.size() + 10)),
        paths);
}

}  // namespace evenkeel
