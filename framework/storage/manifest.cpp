#include "framework/storage/manifest.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/file.h"
#include "framework/storage/hash.h"
#include "framework/storage/json_depth.h"
#include "framework/storage/safetensors.h"
#include "framework/storage/state_shard.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kOp = "manifest";
constexpr const char* kStepPrefix = "step_";
constexpr std::int64_t kFormat = 1;
constexpr std::uint64_t kMostBytes = 64 << 20;
constexpr std::size_t kMostName = 1024;
constexpr std::int64_t kMostStep = std::int64_t{1} << 62;
const std::string kBeforeHash = ",\n  \"xxh64\": \"";
const std::string kAfterHash = "\"\n}\n";

// The object's text with the hash of all before it as its last entry.
std::string sealed(const Json& object) {
    std::string text = object.dump(2);
    text.resize(text.size() - 2);  // "\n}"
    return text + kBeforeHash + hash_text(hash_of(text)) + kAfterHash;
}

// Checks the seal and returns the object without it.
Json unsealed(const std::string& text, const std::string& origin) {
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, kOp, origin, ": ", what...);
    };
    check(text.size() <= kMostBytes, "got more than ", kMostBytes, " bytes");
    const std::size_t tail = kBeforeHash.size() + 16 + kAfterHash.size();
    check(text.size() > tail, "got ", text.size(), " bytes, want a manifest with its own hash");
    const std::string_view all = text;
    const std::string_view body = all.substr(0, all.size() - tail);
    const std::string_view seal = all.substr(body.size());
    const auto want = parse_hash(seal.substr(kBeforeHash.size(), 16));
    check(seal.starts_with(kBeforeHash) && seal.ends_with(kAfterHash) && want.has_value(),
          "is cut short or damaged: it does not end with its own hash");
    const std::uint64_t got = hash_of(body);
    check(got == *want, "got hash ", hash_text(got), " of its text, want ", hash_text(*want),
          " (it is damaged)");
    check_json_depth(kOp, body, origin);
    Json object = Json::parse(std::string(body) + "\n}", nullptr, false);
    check(object.is_object(), "got no JSON object");
    return object;
}

bool is_safe_name(const std::string& name) {
    if (name.empty() || name.size() > kMostName || name == kManifestName) return false;
    const bool is_clean = std::all_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '\\';
    });
    if (!is_clean || name.front() == '/' || name.back() == '/') return false;
    for (const fs::path& part : fs::path(name)) {
        if (part.empty() || part == "." || part == "..") return false;
    }
    return fs::path(name).lexically_normal().string() == name;
}

std::int64_t number(const Json& object, const char* key, std::int64_t most) {
    const auto found = object.find(key);
    EVENKEEL_CHECK(found != object.end() && found->is_number_unsigned(), kOp, key,
                   ": got no number, want 0 or more");
    const auto value = found->get<std::uint64_t>();
    EVENKEEL_CHECK(value <= static_cast<std::uint64_t>(most), kOp, key, ": got ", value,
                   ", want at most ", most);
    return static_cast<std::int64_t>(value);
}

std::string text_of(const Json& object, const char* key) {
    const auto found = object.find(key);
    EVENKEEL_CHECK(found != object.end() && found->is_string(), kOp, key, ": got no text");
    return found->get<std::string>();
}

void check_keys(const Json& object, std::initializer_list<const char*> keys) {
    for (const auto& item : object.items()) {
        EVENKEEL_CHECK(
            std::find(keys.begin(), keys.end(), item.key()) != keys.end(), kOp,
            "got the unknown entry ",
            Json(item.key().substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace));
    }
}

Json files_json(const std::vector<ManifestFile>& files) {
    Json out = Json::object();
    for (const ManifestFile& file : files) {
        out[file.name] = {{"size", file.size}, {"xxh64", hash_text(file.hash)}};
    }
    return out;
}

std::vector<ManifestFile> files_of(const Json& object) {
    const auto found = object.find("files");
    EVENKEEL_CHECK(found != object.end() && found->is_object(), kOp, "files: got no object");
    std::vector<ManifestFile> files;
    for (const auto& [name, entry] : found->items()) {
        EVENKEEL_CHECK(
            is_safe_name(name), kOp, "files: got a name that leads elsewhere: ",
            Json(name.substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace));
        EVENKEEL_CHECK(files.empty() || files.back().name < name, kOp,
                       "files: want ascending names, got ", name);
        EVENKEEL_CHECK(entry.is_object(), kOp, name, ": got no object");
        check_keys(entry, {"size", "xxh64"});
        const auto hash = parse_hash(text_of(entry, "xxh64"));
        EVENKEEL_CHECK(hash.has_value(), kOp, name, ": got no hash of 16 digits");
        files.push_back(
            {name, static_cast<std::uint64_t>(number(entry, "size", kMostStep)), *hash});
    }
    return files;
}

// Whatever is wrong with what `parse` reads is kIo with the file's name.
template <typename F>
auto parsed(const std::string& origin, F&& parse) {
    try {
        return parse();
    } catch (const Error& error) {
        if (error.code() == ErrorCode::kIo) throw;
        throw_error(ErrorCode::kIo, kOp, concat(origin, ": ", error.what()));
    } catch (const std::exception& error) {
        throw_error(ErrorCode::kIo, kOp, concat(origin, ": ", error.what()));
    }
}

constexpr const char* kRunState = "trainer.json";

// The type of what a name leads to; throws SystemError where that cannot be seen.
fs::file_type type_of(const std::string& path) {
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    if (type != fs::file_type::none) return type;
    throw SystemError(concat("[", kOp, "] ", path, ": cannot look at: ", error.message()),
                      error.value());
}

// What is wrong with a directory that has no manifest: nothing where none was ever written.
void find_faults_without_manifest(const std::string& directory,
                                  const std::function<void(const char*, std::string)>& add) {
    const bool is_checkpoint = step_of_directory(directory) >= 0;
    const std::string path = directory + "/" + kRunState;
    const fs::file_type type = type_of(path);
    if (type == fs::file_type::not_found && !is_checkpoint) return;
    if (type != fs::file_type::regular) {
        if (is_checkpoint) add(kRunState, concat("is missing, as is ", kManifestName));
        return;
    }
    const Json json = Json::parse(read_file(path), nullptr, false);
    if (json.is_object() && json.contains("checkpoint_format")) {
        return add(kManifestName, "is missing");
    }
    if (!is_checkpoint) return;
    if (!json.is_object()) return add(kRunState, "is damaged: got no JSON object");
    if (json.contains("step") && json["step"] != step_of_directory(directory)) {
        add(kRunState, "is that of step " + json["step"].dump());
    }
    bool has_tensors = false;
    for (const std::string& name : files_in(directory)) {
        if (fs::path(name).extension() != ".safetensors") continue;
        has_tensors = true;
        try {
            const SafetensorsReader checks_it(directory + "/" + name);
        } catch (const SystemError&) {
            throw;
        } catch (const Error& error) {
            add(name.c_str(), error.what());
        }
    }
    if (!has_tensors) add("", "holds no file of tensors");
    if (has_state(directory, "model") && !has_state(directory, "optimizer")) {
        add("optimizer.safetensors", "is missing");
    }
}

// Whether a file of a checkpoint would be taken for one of its own.
bool is_read(const std::string& name) {
    const fs::path extension = fs::path(name).extension();
    return extension == ".safetensors" || extension == ".json";
}

// Left by NFS for a file that was removed while open; not this project's.
bool is_of_file_system(const std::string& name) {
    return fs::path(name).filename().string().starts_with(".nfs");
}

}  // namespace

std::string name_of_step(std::int64_t step) {
    EVENKEEL_CHECK(step >= 0, kOp, "step: got ", step, ", want 0 or more");
    const std::string digits = std::to_string(step);
    return kStepPrefix + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

std::int64_t step_of_name(const std::string& name) {
    const std::size_t skip = std::strlen(kStepPrefix);
    if (name.compare(0, skip, kStepPrefix) != 0) return -1;
    std::int64_t step = -1;
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + skip, last, step);
    if (error != std::errc() || end != last || step < 0) return -1;
    return name_of_step(step) == name ? step : -1;
}

std::int64_t step_of_directory(const std::string& directory) {
    const fs::path path = fs::path(directory).lexically_normal();
    return step_of_name((path.has_filename() ? path : path.parent_path()).filename().string());
}

std::string to_text(const Manifest& manifest) {
    Json json;
    json["format"] = kFormat;
    json["step"] = manifest.step;
    json["after"] = manifest.after;
    json["layout"] = Json::parse(manifest.layout);
    json["files"] = files_json(manifest.files);
    return sealed(json);
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
    const Json json = unsealed(text, origin);
    return parsed(origin, [&] {
        const std::int64_t format = number(json, "format", kMostStep);
        EVENKEEL_CHECK(format == kFormat, kOp, "format: got ", format, ", want ", kFormat,
                       " (it is of a newer version of this program)");
        check_keys(json, {"format", "step", "after", "layout", "files"});
        Manifest manifest;
        manifest.step = number(json, "step", kMostStep);
        manifest.after = text_of(json, "after");
        EVENKEEL_CHECK(json.contains("layout") && json["layout"].is_object(), kOp,
                       "layout: got no object");
        manifest.layout = json["layout"].dump();
        manifest.files = files_of(json);
        EVENKEEL_CHECK(to_text(manifest) == text, kOp, "got other text than this program writes");
        return manifest;
    });
}

std::string to_text(const std::vector<ManifestFile>& files) {
    Json json;
    json["files"] = files_json(files);
    return sealed(json);
}

std::vector<ManifestFile> parse_manifest_files(const std::string& text, const std::string& origin) {
    const Json json = unsealed(text, origin);
    return parsed(origin, [&] {
        check_keys(json, {"files"});
        std::vector<ManifestFile> files = files_of(json);
        EVENKEEL_CHECK(to_text(files) == text, kOp, "got other text than this program writes");
        return files;
    });
}

ManifestFile describe_file(const std::string& directory, const std::string& name) {
    constexpr std::size_t kPiece = 1 << 20;
    const File file = File::open_for_reading(directory + "/" + name);
    const std::uint64_t size = file.size();
    std::vector<char> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, size)));
    Hasher hasher;
    for (std::uint64_t at = 0; at < size; at += piece.size()) {
        const auto count =
            static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size - at));
        file.read_at(piece.data(), count, at);
        hasher.add(piece.data(), count);
    }
    return {name, size, hasher.value()};
}

std::vector<std::string> files_in(const std::string& directory) {
    std::vector<std::string> names;
    std::error_code error;
    fs::recursive_directory_iterator it(directory, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
        const std::string name = fs::path(it->path()).lexically_relative(directory).string();
        if (it->is_directory() && !it->is_symlink()) continue;
        if (name == kManifestName || is_of_file_system(name)) continue;
        EVENKEEL_CHECK_CODE(it->is_regular_file() && !it->is_symlink(), ErrorCode::kIo, kOp,
                            it->path().string(), ": is no regular file");
        names.push_back(name);
    }
    if (error) {
        throw SystemError(concat("[", kOp, "] ", directory, ": cannot list: ", error.message()),
                          error.value());
    }
    std::sort(names.begin(), names.end());
    return names;
}

void write_manifest(const std::string& directory,
                    Manifest manifest,
                    const std::vector<ManifestFile>& known) {
    manifest.files.clear();
    for (const std::string& name : files_in(directory)) {
        const auto found = std::find_if(known.begin(), known.end(), [&](const ManifestFile& file) {
            return file.name == name;
        });
        manifest.files.push_back(found != known.end() ? *found : describe_file(directory, name));
    }
    for (const ManifestFile& file : known) {
        EVENKEEL_CHECK_CODE(fs::exists(fs::path(directory) / file.name), ErrorCode::kIo, kOp,
                            directory, "/", file.name, ": has gone since it was written");
    }
    write_file(directory + "/" + kManifestName, to_text(manifest));
}

std::optional<Manifest> read_manifest(const std::string& directory) {
    const std::string path = directory + "/" + kManifestName;
    const fs::file_type type = type_of(path);
    if (type == fs::file_type::not_found) return std::nullopt;
    EVENKEEL_CHECK_CODE(type == fs::file_type::regular, ErrorCode::kIo, kOp, path,
                        ": is no regular file");
    return parse_manifest(File::open_for_reading(path).read_rest(kMostBytes + 1), path);
}

std::vector<int> share_of_files(const std::vector<ManifestFile>& files, int ranks) {
    std::vector<std::size_t> order(files.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return files[a].size > files[b].size; });
    std::vector<double> bytes(static_cast<std::size_t>(ranks), 0.0);
    std::vector<int> share(files.size());
    for (const std::size_t file : order) {
        const auto least = std::min_element(bytes.begin(), bytes.end());
        // Opening a file costs something, too.
        *least += static_cast<double>(files[file].size) + 4096.0;
        share[file] = static_cast<int>(least - bytes.begin());
    }
    return share;
}

CheckpointFaults find_faults(const std::string& directory, Check check, int rank, int ranks) {
    CheckpointFaults found;
    std::string at = kManifestName;
    const auto add = [&](const std::string& file, const auto&... reason) {
        found.faults.push_back({file, concat(reason...)});
    };
    try {
        const std::optional<Manifest> manifest = read_manifest(directory);
        if (!manifest.has_value()) {
            found.has_manifest = false;
            at = kRunState;
            find_faults_without_manifest(directory, add);
            return found;
        }
        const std::int64_t step = step_of_directory(directory);
        if (step >= 0 && manifest->step != step) {
            add(kManifestName, "is that of step ", manifest->step,
                ": the directory has another checkpoint's name");
        }
        at.clear();
        const std::vector<int> share = share_of_files(manifest->files, ranks);
        std::map<std::string, bool> there;  // whether the manifest names it
        for (const std::string& name : files_in(directory)) there[name] = false;
        for (std::size_t i = 0; i < manifest->files.size(); ++i) {
            const ManifestFile& want = manifest->files[i];
            at = want.name;
            const auto file = there.find(want.name);
            if (file != there.end()) file->second = true;
            if (share[i] != rank) continue;
            if (file == there.end()) {
                add(want.name, "is missing");
                continue;
            }
            const std::uint64_t size = fs::file_size(fs::path(directory) / want.name);
            if (size != want.size) {
                add(want.name, "got ", size, " bytes, want ", want.size);
                continue;
            }
            if (check == Check::kSizes) continue;
            const std::uint64_t hash = describe_file(directory, want.name).hash;
            if (hash == want.hash) continue;
            add(want.name, "got hash ", hash_text(hash), ", want ", hash_text(want.hash));
        }
        for (const auto& [name, is_named] : there) {
            if (is_named || rank != 0) continue;
            if (is_read(name)) {
                add(name, "is not in ", kManifestName);
            } else {
                found.extra.push_back(name);
            }
        }
    } catch (const SystemError& error) {
        const bool is_gone = error.number() == ENOENT || error.number() == ENOTDIR;
        found.faults.push_back({at, error.what(), !is_gone});
    } catch (const fs::filesystem_error& error) {
        const bool is_gone = error.code() == std::errc::no_such_file_or_directory;
        found.faults.push_back({at, error.what(), !is_gone});
    } catch (const std::exception& error) {
        add(at, error.what());
    }
    return found;
}

std::string to_text(const std::string& directory, const std::vector<FileFault>& faults) {
    constexpr std::size_t kShown = 5;
    std::string text = directory + ": ";
    for (std::size_t i = 0; i < std::min(faults.size(), kShown); ++i) {
        const FileFault& fault = faults[i];
        text +=
            concat(i == 0 ? "" : "; ", fault.file, fault.file.empty() ? "" : ": ", fault.reason);
    }
    if (faults.size() > kShown) text += concat("; and ", faults.size() - kShown, " more");
    return text;
}

}  // namespace evenkeel
