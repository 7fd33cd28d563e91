// evenkeel inspect: what safetensors files hold, from their headers alone; what a Hugging Face folder is here.
#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/hash.h"
#include "framework/storage/json_depth.h"
#include "framework/storage/safetensors.h"
#include "framework/storage/state_shard.h"
#include "framework/training/run_state.h"
#include "launch/commands.h"
#include "launch/saved_run.h"
#include "model/hugging_face/folder.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Of a run its newest checkpoint, else the path itself.
std::string directory_of(const std::string& path) {
    if (!fs::exists(fs::path(path) / "config.json") ||
        !fs::exists(fs::path(path) / "checkpoints")) {
        return path;
    }
    const std::string newest =
        CheckpointStore((fs::path(path) / "checkpoints").string(), 0).latest();
    EVENKEEL_CHECK_CODE(!newest.empty(), ErrorCode::kIo, "inspect", path,
                        ": holds no complete checkpoint; train it first");
    return newest;
}

std::vector<std::string> safetensors_files(const std::string& path) {
    if (fs::is_regular_file(path)) return {path};
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "inspect", path,
                        ": no such file or directory");
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(directory_of(path))) {
        if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    }
    EVENKEEL_CHECK_CODE(!files.empty(), ErrorCode::kIo, "inspect", path,
                        ": holds no .safetensors file");
    std::sort(files.begin(), files.end());
    return files;
}

// What the manifest of a directory says, and what is not so; null where there is no manifest and none is missing.
Json describe_manifest(const std::string& path, bool verify) {
    if (!fs::is_directory(path)) return nullptr;
    const std::string directory = directory_of(path);
    const CheckpointFaults found =
        find_faults(directory, verify ? Check::kContents : Check::kSizes);
    if (!found.has_manifest && found.faults.empty()) return nullptr;
    Json out;
    out["directory"] = directory;
    try {
        const std::optional<Manifest> manifest = read_manifest(directory);
        if (manifest.has_value()) {
            out["step"] = manifest->step;
            out["after"] = manifest->after;
            out["layout"] = Json::parse(manifest->layout);
            for (const ManifestFile& file : manifest->files) {
                out["files"][file.name] = {{"size", file.size}, {"xxh64", hash_text(file.hash)}};
            }
        }
    } catch (const Error&) {
        // The faults say so.
    }
    out["verified"] = verify && found.faults.empty();
    out["faults"] = Json::array();
    for (const FileFault& fault : found.faults) {
        out["faults"].push_back({{"file", fault.file}, {"reason", fault.reason}});
    }
    return out;
}

void print_manifest(const Json& manifest) {
    std::cout << manifest["directory"].get<std::string>() << "\n";
    if (manifest.contains("step")) {
        std::cout << "  step       " << manifest["step"] << "\n  layout     "
                  << printable(manifest["layout"].dump()) << "\n";
        const Json files = manifest.value("files", Json::object());
        for (const auto& [name, file] : files.items()) {
            std::cout << "  xxh64      " << file["xxh64"].get<std::string>() << std::setw(18)
                      << grouped(file["size"].get<std::int64_t>()) << " bytes  " << printable(name)
                      << "\n";
        }
    }
    for (const Json& fault : manifest["faults"]) {
        std::cout << "  fault      " << printable(fault["file"].get<std::string>()) << ": "
                  << printable(fault["reason"].get<std::string>()) << "\n";
    }
    if (manifest["verified"].get<bool>()) {
        std::cout << "  verified   every file is as the manifest says\n";
    }
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

constexpr std::size_t kLine = 96;  // columns of a value over several lines

// Leaves of an object as "path=value".
void add_leaves(const Json& object, const std::string& path, std::vector<std::string>& out) {
    for (const auto& [key, value] : object.items()) {
        const std::string name = path.empty() ? key : path + "." + key;
        if (value.is_object() && !value.empty()) {
            add_leaves(value, name, out);
        } else {
            out.push_back(name + "=" + value.dump());
        }
    }
}

// A value of metadata; what is JSON in itself setting by setting, over as many lines as it needs.
std::string readable(const std::string& value) {
    if (is_nested_deeper(value)) return printable(value);
    const Json json = Json::parse(value, nullptr, false);
    if (!json.is_object()) return printable(value);
    std::vector<std::string> words;
    add_leaves(json, "", words);
    std::string text, line;
    for (const std::string& word : words) {
        if (!line.empty() && line.size() + 1 + word.size() > kLine) {
            text += "\n    " + line;
            line.clear();
        }
        line += (line.empty() ? "" : " ") + word;
    }
    return printable(text + "\n    " + line);
}

// Those of metadata that a file before has told in full are named.
void print(const Json& file, std::map<std::string, std::string>& told) {
    std::cout << file["path"].get<std::string>() << "\n";
    for (const auto& [key, value] : file["metadata"].items()) {
        const std::string text = readable(value.get<std::string>());
        const bool known = text.size() > kLine && told[key] == text;
        std::cout << "  metadata   " << printable(key) << " = " << (known ? "as above" : text)
                  << "\n";
        told[key] = text;
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

// What a Hugging Face folder is to this project.
Json describe(const hugging_face::Folder& folder) {
    Json out;
    out["path"] = folder.origin();
    out["family"] = folder.family().name;
    out["summary"] = folder.family().summary;
    ModelConfig config = folder.config();
    out["config"] = Json::parse(to_json([&](ConfigVisitor& v) { config.visit_fields(v); }));
    Json& tensors = out["tensors"] = Json::array();
    for (const hugging_face::TensorMap& map : folder.maps()) {
        Json made_of = Json::array();
        for (const auto& theirs : map.theirs) {
            made_of.push_back(
                {{"name", theirs.name},
                 {"shape", theirs.shape},
                 {"file", fs::path(folder.shards().file_of(theirs.name).path()).filename()}});
        }
        tensors.push_back({{"name", map.ours},
                           {"dtype", name_of(folder.dtype(map.ours))},
                           {"shape", map.shape},
                           {"made_of", made_of}});
    }
    out["left_out"] = folder.left_out();
    out["elements"] = parameter_count(config);
    out["bytes"] = folder.shards().bytes();
    return out;
}

void print_folder(const Json& folder, const hugging_face::Folder& source) {
    std::cout << printable(folder["path"].get<std::string>()) << "\n  family     "
              << folder["family"].get<std::string>() << " (" << folder["summary"].get<std::string>()
              << ")\n";
    RunConfig config;
    config.model = source.config();
    std::istringstream lines(compact_text(config));
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("model")) std::cout << "  " << line << "\n";
        if (line.starts_with("data")) break;
    }
    for (const Json& tensor : folder["tensors"]) {
        std::cout << "  " << std::left << std::setw(34) << tensor["name"].get<std::string>()
                  << std::setw(6) << tensor["dtype"].get<std::string>() << std::setw(16)
                  << to_string(tensor["shape"].get<Shape>()) << "<- "
                  << tensor["made_of"][0]["name"].get<std::string>();
        if (tensor["made_of"].size() > 1) {
            std::cout << " and " << tensor["made_of"].size() - 1 << " more";
        }
        std::cout << "\n";
    }
    for (const Json& name : folder["left_out"]) {
        std::cout << "  left out   " << printable(name.get<std::string>()) << "\n";
    }
    std::cout << "  total: " << folder["tensors"].size() << " parameters, "
              << grouped(folder["elements"].get<std::int64_t>()) << " elements, "
              << grouped(folder["bytes"].get<std::int64_t>()) << " bytes in "
              << source.shards().files().size()
              << (source.shards().files().size() == 1 ? " file\n" : " files\n");
}

// Whether it was one that can be read as a model.
bool inspect_folder(const InspectCommand& command) {
    if (!hugging_face::is_folder(command.path)) return false;
    try {
        const hugging_face::Folder folder(command.path);
        const Json out = describe(folder);
        if (command.json) {
            std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
        } else {
            print_folder(out, folder);
        }
        return true;
    } catch (const Error& error) {
        log_warning(concat("as a model it is refused: ", error.what()));
        return false;
    }
}

void verify(const InspectCommand& command, const Json& manifest) {
    EVENKEEL_CHECK_CODE(!manifest.is_null(), ErrorCode::kIo, "inspect", command.path, ": has no ",
                        kManifestName, " to compare with");
    if (command.json) {
        std::cout << manifest.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    } else {
        print_manifest(manifest);
    }
    EVENKEEL_CHECK_CODE(manifest["faults"].empty(), ErrorCode::kIo, "inspect", command.path,
                        ": is not as its manifest says");
}

// Throws kIo unless a run could go on from these files, whatever their numbers are.
void check_resumable(const std::string& directory, std::int64_t step) {
    const auto model = open_state(directory, "model");
    const std::string file = (fs::path(directory) / "trainer.json").string();
    EVENKEEL_CHECK_CODE(fs::is_regular_file(file), ErrorCode::kIo, "inspect", directory,
                        ": trainer.json is missing");
    const RunState state = parse_run_state(read_file(file), file);
    EVENKEEL_CHECK_CODE(state.step == step, ErrorCode::kIo, "inspect", file, ": is that of step ",
                        state.step, ", want that of step ", step);
    const auto optimizer = open_state(directory, "optimizer");
    for (const std::string& name : optimizer->names()) {
        const std::string weight = name.substr(0, name.rfind(".exp_avg"));
        EVENKEEL_CHECK_CODE(
            model->contains(weight) && model->shape(weight) == optimizer->shape(name),
            ErrorCode::kIo, "inspect", directory, ": the optimizer's ", name, " ",
            to_string(optimizer->shape(name)), " is of another model");
    }
}

// For somebody who has changed files by intent.
void accept(const InspectCommand& command) {
    EVENKEEL_CHECK_CODE(fs::is_directory(command.path), ErrorCode::kIo, "inspect", command.path,
                        ": no such directory, want a run or a checkpoint");
    const std::string directory = directory_of(command.path);
    EVENKEEL_CHECK_CODE(step_of_directory(directory) >= 0, ErrorCode::kIo, "inspect", command.path,
                        ": got no checkpoint, want a run or a directory step_00000020");
    const CheckpointFaults before = find_faults(directory, Check::kContents);
    for (const FileFault& fault : before.faults) {
        std::cout << "changed   " << printable(fault.file) << ": " << printable(fault.reason)
                  << "\n";
    }
    Manifest manifest;
    try {
        manifest = read_manifest(directory).value_or(Manifest{});
    } catch (const Error&) {
        // It is among the faults.
    }
    manifest.step = step_of_directory(directory);
    check_resumable(directory, manifest.step);  // what cannot be read is no better for a manifest
    write_manifest(directory, manifest);
    std::cout << "accepted  " << directory << ": " << files_in(directory).size() << " files\n";
}

}  // namespace

void run_inspect(const InspectCommand& command) {
    if (command.accept) return accept(command);
    const Json manifest = describe_manifest(command.path, command.verify);
    if (command.verify) return verify(command, manifest);
    if (inspect_folder(command)) return;
    Json files = Json::array();
    for (const std::string& path : safetensors_files(command.path)) files.push_back(describe(path));
    if (command.json) {
        std::cout << Json{{"path", command.path}, {"manifest", manifest}, {"files", files}}.dump(
                         2, ' ', false, Json::error_handler_t::replace)
                  << "\n";
        return;
    }
    if (!manifest.is_null()) print_manifest(manifest);
    std::map<std::string, std::string> told;
    for (const Json& file : files) print(file, told);
}

}  // namespace evenkeel
