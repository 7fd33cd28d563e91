// evenkeel inspect: what safetensors files hold, from their headers alone.
#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "framework/checkpoint.h"
#include "framework/safetensors.h"
#include "launch/commands.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<std::string> safetensors_files(const std::string& path) {
    if (fs::is_regular_file(path)) return {path};
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "inspect", path,
                        ": no such file or directory");
    std::string directory = path;
    if (fs::exists(fs::path(path) / "config.json") && fs::exists(fs::path(path) / "checkpoints")) {
        directory = CheckpointStore((fs::path(path) / "checkpoints").string(), 0).latest();
        EVENKEEL_CHECK_CODE(!directory.empty(), ErrorCode::kIo, "inspect", path,
                            ": holds no complete checkpoint; train it first");
    }
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(directory)) {
        if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    }
    EVENKEEL_CHECK_CODE(!files.empty(), ErrorCode::kIo, "inspect", path,
                        ": holds no .safetensors file");
    std::sort(files.begin(), files.end());
    return files;
}

Json describe(const std::string& path) {
    const SafetensorsReader reader(path);
    Json file;
    file["path"] = path;
    file["metadata"] = Json::object();
    for (const auto& [key, value] : reader.metadata()) file["metadata"][key] = value;
    Json& tensors = file["tensors"] = Json::array();
    std::int64_t elements = 0;
    std::uint64_t bytes = 0;
    for (const TensorInfo& info : reader.tensors()) {
        tensors.push_back({{"name", info.name},
                           {"dtype", info.dtype},
                           {"shape", info.shape},
                           {"bytes", info.end - info.begin}});
        elements += num_elements(info.shape);
        bytes += info.end - info.begin;
    }
    file["elements"] = elements;
    file["bytes"] = bytes;
    return file;
}

// On one line: what is JSON in itself without its line breaks.
std::string compact(const std::string& value) {
    const Json json = Json::parse(value, nullptr, false);
    return printable(json.is_object() ? json.dump() : value);
}

void print(const Json& file) {
    std::cout << file["path"].get<std::string>() << "\n";
    for (const auto& [key, value] : file["metadata"].items()) {
        std::cout << "  metadata   " << printable(key) << " = " << compact(value.get<std::string>())
                  << "\n";
    }
    std::size_t name_width = 4;
    std::size_t shape_width = 5;
    for (const Json& tensor : file["tensors"]) {
        name_width = std::max(name_width, tensor["name"].get<std::string>().size());
        shape_width = std::max(shape_width, to_string(tensor["shape"].get<Shape>()).size());
    }
    for (const Json& tensor : file["tensors"]) {
        std::cout << "  " << std::left << std::setw(static_cast<int>(name_width) + 2)
                  << printable(tensor["name"].get<std::string>()) << std::setw(6)
                  << tensor["dtype"].get<std::string>()
                  << std::setw(static_cast<int>(shape_width) + 2)
                  << to_string(tensor["shape"].get<Shape>()) << std::right << std::setw(15)
                  << grouped(tensor["bytes"].get<std::int64_t>()) << " bytes\n";
    }
    std::cout << "  total: " << file["tensors"].size() << " tensors, "
              << grouped(file["elements"].get<std::int64_t>()) << " elements, "
              << grouped(file["bytes"].get<std::int64_t>()) << " bytes\n";
}

}  // namespace

void run_inspect(const InspectCommand& command) {
    Json files = Json::array();
    for (const std::string& path : safetensors_files(command.path)) files.push_back(describe(path));
    if (command.json) {
        std::cout << Json{{"path", command.path}, {"files", files}}.dump(
                         2, ' ', false, Json::error_handler_t::replace)
                  << "\n";
        return;
    }
    for (const Json& file : files) print(file);
}

}  // namespace evenkeel
