#include "framework/storage/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "framework/error.h"
#include "framework/storage/file.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step_";
constexpr const char* kUnfinished = ".tmp";  // being written, or being removed

void check(const std::error_code& error, const std::string& path, const char* action) {
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "checkpoint", path, ": cannot ", action, ": ",
                        error.message());
}

std::string name_of_step(std::int64_t step) {
    EVENKEEL_CHECK(step >= 0, "checkpoint", "step: got ", step, ", want 0 or more");
    const std::string digits = std::to_string(step);
    return kPrefix + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

// The step that a name stands for, -1 for any other name.
std::int64_t step_of_name(const std::string& name) {
    const std::size_t skip = std::strlen(kPrefix);
    if (name.compare(0, skip, kPrefix) != 0) return -1;
    std::int64_t step = -1;
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + skip, last, step);
    if (error != std::errc() || end != last || step < 0) return -1;
    return name_of_step(step) == name ? step : -1;
}

std::vector<fs::directory_entry> list(const std::string& directory) {
    std::vector<fs::directory_entry> entries;
    std::error_code error;
    fs::directory_iterator it(directory, error);
    if (error == std::errc::no_such_file_or_directory) return entries;
    for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(*it);
    check(error, directory, "list");
    return entries;
}

void remove_tree(const std::string& path) {
    std::error_code error;
    fs::remove_all(path, error);
    check(error, path, "remove");
}

void rename_path(const std::string& from, const std::string& to) {
    std::error_code error;
    fs::rename(from, to, error);
    check(error, to, "rename to");
}

// Puts `fresh` in the place of an earlier directory `path` in one step where the file system can, and
// leaves the earlier one under the name `fresh` or `fresh` + ".tmp".
void exchange(const std::string& fresh, const std::string& path) {
    if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
    rename_path(path, fresh + kUnfinished);
    rename_path(fresh, path);
}

}  // namespace

void sync_tree(const std::string& directory) {
    for (const fs::directory_entry& entry : list(directory)) {
        if (entry.is_directory()) {
            sync_tree(entry.path().string());
        } else {
            File::open_for_reading(entry.path().string()).sync();
        }
    }
    sync_directory(directory);
}

CheckpointStore::CheckpointStore(std::string directory, std::int64_t keep)
    : directory_(std::move(directory)), keep_(keep) {
    EVENKEEL_CHECK(keep >= 0, "checkpoint", "keep: got ", keep, ", want 0 or more");
}

std::string CheckpointStore::path(std::int64_t step) const {
    return (fs::path(directory_) / name_of_step(step)).string();
}

std::string CheckpointStore::begin(std::int64_t step) const {
    const std::string unfinished = path(step) + kUnfinished;
    std::error_code error;
    fs::create_directories(directory_, error);
    check(error, directory_, "create");
    remove_unfinished();
    fs::create_directory(unfinished, error);
    check(error, unfinished, "create");
    return unfinished;
}

std::string CheckpointStore::commit(std::int64_t step) const {
    const std::string final_path = path(step);
    const std::string unfinished = final_path + kUnfinished;
    sync_tree(unfinished);
    if (fs::exists(final_path)) {
        exchange(unfinished, final_path);
    } else {
        rename_path(unfinished, final_path);
    }
    sync_directory(directory_);
    remove_old(step);
    remove_unfinished();
    return final_path;
}

void CheckpointStore::remove_unfinished() const {
    for (const fs::directory_entry& entry : list(directory_)) {
        std::string name = entry.path().filename().string();
        while (name.size() > 4 && name.compare(name.size() - 4, 4, kUnfinished) == 0) {
            name.resize(name.size() - 4);
            if (step_of_name(name) >= 0) remove_tree(entry.path().string());
        }
    }
}

void CheckpointStore::remove_old(std::int64_t just_written) const {
    if (keep_ == 0) return;
    std::vector<std::int64_t> old = steps();
    old.resize(old.size() - std::min(old.size(), static_cast<std::size_t>(keep_)));
    for (std::int64_t step : old) {
        if (step == just_written) continue;
        // Renamed first: an interrupted removal must not look like a checkpoint.
        rename_path(path(step), path(step) + kUnfinished);
    }
}

std::vector<std::int64_t> CheckpointStore::steps() const {
    std::vector<std::int64_t> found;
    for (const fs::directory_entry& entry : list(directory_)) {
        const std::int64_t step = step_of_name(entry.path().filename().string());
        std::error_code ignored;
        if (step >= 0 && entry.is_directory(ignored)) found.push_back(step);
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::string CheckpointStore::latest() const {
    const std::vector<std::int64_t> committed = steps();
    return committed.empty() ? "" : path(committed.back());
}

std::string newest_checkpoint(const std::string& path) {
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "checkpoint", path,
                        ": no such directory, want a run or a checkpoint in one");
    const fs::path checkpoints = fs::path(path) / "checkpoints";
    if (!fs::is_directory(checkpoints)) return path;
    const std::string newest = CheckpointStore(checkpoints.string(), 0).latest();
    EVENKEEL_CHECK_CODE(!newest.empty(), ErrorCode::kIo, "checkpoint", path,
                        ": holds no complete checkpoint; train it first");
    return newest;
}

void write_file_atomically(const std::string& path, const std::string& text) {
    const std::string unfinished = path + kUnfinished;
    std::error_code ignored;  // writing reports the reason
    const fs::file_status status = fs::status(path, ignored);
    EVENKEEL_CHECK_CODE(!fs::exists(status) || fs::is_regular_file(status), ErrorCode::kIo,
                        "checkpoint", path, ": got a directory, a device or a pipe, want a file");
    try {
        File file = File::create(unfinished);
        file.write(text.data(), text.size());
        file.sync();
        file.close();
        rename_path(unfinished, path);
    } catch (const Error&) {
        std::remove(unfinished.c_str());
        throw;
    }
    sync_directory(parent_directory(path));
}

std::string read_file(const std::string& path) { return File::open_for_reading(path).read_rest(); }

}  // namespace evenkeel
