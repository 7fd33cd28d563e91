// What a checkpoint's manifest.json says: which files belong to it, with size and hash of each. It is written last,
// so that a directory with a manifest is complete, and carries a hash of its own text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace evenkeel {

inline constexpr const char* kManifestName = "manifest.json";

// "step_00000020", the name of a checkpoint's directory, and the step that a name stands for: -1 for any other.
std::string name_of_step(std::int64_t step);
std::int64_t step_of_name(const std::string& name);
// The step that a directory has the name of, -1 for any other name.
std::int64_t step_of_directory(const std::string& directory);

struct ManifestFile {
    std::string name;  // relative to the directory, with '/': "hugging_face/config.json"
    std::uint64_t size = 0;
    std::uint64_t hash = 0;  // hash.h
    bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
    std::int64_t step = 0;
    std::string after;  // name of the checkpoint that was the newest before this one; "": none
    std::string layout = "{}";        // JSON object: how the ranks that wrote it were arranged
    std::vector<ManifestFile> files;  // ascending by name
    bool operator==(const Manifest&) const = default;
};

std::string to_text(const Manifest& manifest);
// Takes anything; throws kIo, naming `origin`, for what is not, byte for byte, a text of to_text. File names lead
// nowhere but into the directory.
Manifest parse_manifest(const std::string& text, const std::string& origin);
// The files' part alone: what one rank says of the files that it has written. The same promises.
std::string to_text(const std::vector<ManifestFile>& files);
std::vector<ManifestFile> parse_manifest_files(const std::string& text, const std::string& origin);

// Size and hash of one file, read whole. Throws kIo.
ManifestFile describe_file(const std::string& directory, const std::string& name);
// Names of all files in a directory and those below, except manifest.json, ascending. Throws kIo for what is
// neither file nor directory.
std::vector<std::string> files_in(const std::string& directory);
// Hashes all that is in the directory except `known`, writes manifest.json and flushes it. `manifest.files` is
// replaced.
void write_manifest(const std::string& directory,
                    Manifest manifest,
                    const std::vector<ManifestFile>& known = {});
// nullopt where there is none. Throws kIo for one that cannot be read.
std::optional<Manifest> read_manifest(const std::string& directory);

struct FileFault {
    std::string file;    // relative to the directory
    std::string reason;  // "is missing", "got 10 bytes, want 20", ...
    // Nobody could look: no permission, an error of the disk or of the network. It may be as it was written.
    bool unreadable = false;
};

// kSizes looks at what files there are and how long they are; kContents hashes them too. A rank looks at its share of the
// files alone (all ranks together see all): share_of_files.
enum class Check { kSizes, kContents };

struct CheckpointFaults {
    bool has_manifest = true;       // false, without a fault: written before there were manifests
    std::vector<FileFault> faults;  // empty: as its manifest says
    std::vector<std::string>
        extra;  // files that nobody reads and the manifest does not name; no faults
};

// Which rank looks at each file: the largest first, each to the one that has the fewest bytes so far. The same on all ranks.
std::vector<int> share_of_files(const std::vector<ManifestFile>& files, int ranks);

// Looks at a checkpoint; every way of not being what was written is a fault, none is an error. One that has the name of
// a step must be of that step, and complete as earlier versions wrote it where it has no manifest: a state of the run
// and files of tensors that can be opened.
CheckpointFaults find_faults(const std::string& directory,
                             Check check,
                             int rank = 0,
                             int ranks = 1);

// "DIR: model.safetensors: got hash .., want ..; ..." for a message.
std::string to_text(const std::string& directory, const std::vector<FileFault>& faults);

}  // namespace evenkeel
