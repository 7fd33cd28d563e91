#include "framework/storage/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <system_error>

#include "framework/error.h"
#include "framework/log.h"
#include "framework/storage/file.h"
#include "framework/storage/hash.h"
#include "framework/storage/replace_file.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUnfinished = ".tmp";  // being written, or being removed
constexpr const char* kDamaged = ".damaged";
constexpr const char* kRewound = ".rewound";  // rewind.h
constexpr const char* kPointer = "latest";

void check(const std::error_code& error, const std::string& path, const char* action) {
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "checkpoint", path, ": cannot ", action, ": ",
                        error.message());
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

// Flushes all that is in a directory except files that have been, which are named relative to it.
void sync_rest(const std::string& directory, const std::vector<ManifestFile>& flushed) {
    for (const std::string& name : files_in(directory)) {
        const auto is_it = [&](const ManifestFile& file) { return file.name == name; };
        if (std::any_of(flushed.begin(), flushed.end(), is_it)) continue;
        File::open_for_reading(directory + "/" + name).sync();
    }
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
        if (entry.is_directory()) sync_directory(entry.path().string());
    }
    sync_directory(directory);
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

std::string CheckpointStore::unfinished_path(std::int64_t step) const {
    return path(step) + kUnfinished;
}

std::string CheckpointStore::begin(std::int64_t step) const {
    const std::string unfinished = unfinished_path(step);
    std::error_code error;
    fs::create_directories(directory_, error);
    check(error, directory_, "create");
    remove_unfinished();
    fs::create_directory(unfinished, error);
    check(error, unfinished, "create");
    return unfinished;
}

std::string CheckpointStore::commit(std::int64_t step,
                                    const std::string& layout,
                                    const std::vector<ManifestFile>& known) const {
    const std::string final_path = path(step);
    const std::string unfinished = unfinished_path(step);
    const std::string latest = (fs::path(directory_) / kPointer).string();
    std::error_code ignored;
    EVENKEEL_CHECK_CODE(!fs::is_directory(fs::symlink_status(latest, ignored)), ErrorCode::kIo,
                        "checkpoint", latest,
                        ": got a directory, want the file that names the "
                        "newest checkpoint (remove it)");
    const std::vector<std::int64_t> before = newest_first();
    Manifest manifest;
    manifest.step = step;
    manifest.layout = layout;
    if (!before.empty() && before.front() != step) manifest.after = name_of_step(before.front());
    write_manifest(unfinished, manifest, known);
    sync_rest(unfinished, known);
    // A `latest` that is on the disk before what it names is gone by, so that one flush does for both.
    const std::string name = name_of_step(step);
    write_file(latest + kUnfinished, concat(name, " ", hash_text(hash_of(name)), "\n"));
    if (fs::exists(final_path)) {
        exchange(unfinished, final_path);
    } else {
        rename_path(unfinished, final_path);
    }
    rename_path(latest + kUnfinished, latest);
    sync_directory(directory_);
    try {
        remove_old(step);
        remove_unfinished();
    } catch (const Error& error) {
        log_warning(concat("an old checkpoint stays: ", error.what()));
    }
    return final_path;
}

void CheckpointStore::discard(std::int64_t step) const noexcept {
    std::error_code ignored;
    fs::remove_all(unfinished_path(step), ignored);
}

std::string CheckpointStore::set_aside(std::int64_t step) const {
    const std::string aside = path(step) + kDamaged;
    std::string name = aside;
    for (int i = 2; fs::exists(name); ++i) name = concat(aside, "-", i);
    std::error_code ignored;  // a pointer to nothing is worth a warning, no more
    if (pointer() == step) fs::remove(fs::path(directory_) / kPointer, ignored);
    rename_path(path(step), name);
    sync_directory(directory_);
    return name;
}

std::vector<std::string> CheckpointStore::kept_aside() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : list(directory_)) {
        const std::string name = entry.path().filename().string();
        const std::size_t dot = name.find('.');
        if (dot == std::string::npos || step_of_name(name.substr(0, dot)) < 0) continue;
        const std::string rest = name.substr(dot);
        if (rest.starts_with(kDamaged) || rest.starts_with(kRewound)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
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
    std::int64_t sound = 0;
    std::vector<std::int64_t> all = steps();
    for (auto step = all.rbegin(); step != all.rend(); ++step) {
        if (*step == just_written) {
            ++sound;
            continue;
        }
        const CheckpointFaults found = find_faults(path(*step), Check::kSizes);
        if (!found.faults.empty()) continue;
        if (sound < keep_) {
            ++sound;
            continue;
        }
        // Renamed first: an interrupted removal must not look like a checkpoint.
        rename_path(path(*step), unfinished_path(*step));
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

std::int64_t CheckpointStore::pointer() const {
    const std::string file = (fs::path(directory_) / kPointer).string();
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(file, ignored))) return -1;
    if (!fs::is_regular_file(file, ignored)) {
        log_warning(file + ": is no regular file; the checkpoints' own names are gone by");
        return -1;
    }
    constexpr std::uint64_t kMost = 64;
    std::string text;
    try {
        text = File::open_for_reading(file).read_rest(kMost);
    } catch (const Error& error) {
        log_warning(error.what());
        return -1;
    }
    const std::string name = text.substr(0, text.find(' '));
    const std::int64_t step = step_of_name(name);
    if (step < 0 || text != concat(name, " ", hash_text(hash_of(name)), "\n")) {
        log_warning(file + ": is damaged; the checkpoints' own names are gone by");
        return -1;
    }
    if (fs::is_directory(path(step), ignored)) return step;
    log_warning(concat(file, ": names ", name, ", which is not there"));
    return -1;
}

std::vector<std::int64_t> CheckpointStore::newest_first() const {
    std::vector<std::int64_t> order = steps();
    std::reverse(order.begin(), order.end());
    const std::int64_t named = order.empty() ? -1 : pointer();
    if (named < 0) return order;
    std::int64_t first = named;
    for (const std::int64_t step : order) {
        // A job that ends between a checkpoint's commit and that of `latest`.
        if (step == named) continue;
        try {
            const std::optional<Manifest> manifest = read_manifest(path(step));
            if (!manifest.has_value() || manifest->after != name_of_step(named)) continue;
        } catch (const Error&) {
            continue;  // whoever reads the checkpoint says so
        }
        first = step;
        break;
    }
    std::erase(order, first);
    order.insert(order.begin(), first);
    if (first != named) {
        std::erase(order, named);
        order.insert(order.begin() + 1, named);
    }
    return order;
}

std::string CheckpointStore::latest() const {
    const std::vector<std::int64_t> order = newest_first();
    return order.empty() ? "" : path(order.front());
}

namespace {

// A rank's part of the work. Ranks ask one another again and again whether all have done theirs: hashing may take longer
// than any wait for others is let to (parallel.timeout_seconds), and one operation between ranks is no longer than this.
CheckpointFaults find_faults_together(const std::string& directory,
                                      const CheckpointReaders& readers) {
    constexpr auto kWait = std::chrono::milliseconds(200);
    const auto find = [&] {
        return find_faults(directory, Check::kContents, readers.rank, readers.ranks);
    };
    if (readers.ranks == 1) return find();
    std::future<CheckpointFaults> finding = std::async(std::launch::async, find);
    bool working = true;
    while (working) {
        const bool mine = finding.wait_for(kWait) != std::future_status::ready;
        working = readers.max_over_ranks(mine ? 1.0 : 0.0) != 0.0;
    }
    return finding.get();
}

// Whether all ranks find their part of the directory as its manifest says. Throws where one cannot read its part: that is
// no reason to take another checkpoint.
bool is_verified(const std::string& directory, const CheckpointReaders& readers) {
    const CheckpointFaults found = find_faults_together(directory, readers);
    const auto unreadable = std::find_if(found.faults.begin(), found.faults.end(),
                                         [](const FileFault& fault) { return fault.unreadable; });
    const bool could_read = unreadable == found.faults.end();
    // All ranks read the manifest, one says what is wrong with it.
    const bool all_see = !found.faults.empty() &&
                         (found.faults.front().file == kManifestName || !found.has_manifest);
    if (could_read && !found.faults.empty() && (readers.rank == 0 || !all_see)) {
        log_warning("not as it was written: " + to_text(directory, found.faults));
    }
    if (!found.extra.empty()) {
        log_warning(concat(directory, ": ", found.extra.front(), " is not in its ", kManifestName,
                           found.extra.size() > 1
                               ? concat(", nor are ", found.extra.size() - 1, " other files")
                               : "",
                           "; nobody reads it"));
    }
    const double worst = found.faults.empty() ? 0.0 : could_read ? 1.0 : 2.0;
    const double of_all = readers.max_over_ranks(worst);
    EVENKEEL_CHECK_CODE(
        of_all < 2.0, ErrorCode::kIo, "checkpoint", directory,
        ": could not be read, so that nobody knows whether it is as it was written: ",
        could_read ? "another rank says why" : to_text("", {*unreadable}).substr(2),
        " (make it readable, or give the checkpoint another name to do without it)");
    return of_all == 0.0;
}

// What the main rank tells the others where there is no checkpoint to try.
constexpr double kNone = -1.0;
constexpr double kOnlyAside = -2.0;
constexpr double kOthersSay = -3.0;

double none_left(const CheckpointStore& store) {
    return store.kept_aside().empty() ? kNone : kOnlyAside;
}

// The main rank alone knows their names.
[[noreturn]] void only_aside(const CheckpointStore& store, bool main) {
    const std::vector<std::string> names = main ? store.kept_aside() : std::vector<std::string>();
    throw_error(ErrorCode::kIo, "checkpoint",
                concat(store.directory(), ": holds no checkpoint but such as were set aside",
                       names.empty() ? "" : " (the last: " + names.back() + ")",
                       "; a run does not begin anew by itself: give a sound one its name back "
                       "(step_ and the digits alone), or take another directory for the run"));
}

}  // namespace

std::string newest_verified(const CheckpointStore& store,
                            const CheckpointReaders& readers,
                            bool set_aside,
                            std::int64_t at_most) {
    // One rank says what there is: others may see a shared directory later.
    const bool main = readers.rank == 0;
    std::vector<std::int64_t> order;
    if (main && at_most == kAnyStep) {
        order = store.newest_first();
    } else if (main) {
        order = store.steps();
        std::erase_if(order, [&](std::int64_t step) { return step > at_most; });
        std::reverse(order.begin(), order.end());
    }
    for (std::size_t i = 0;; ++i) {
        double mine = kOthersSay;
        if (main) mine = i < order.size() ? static_cast<double>(order[i]) : none_left(store);
        const double step_or_none = readers.max_over_ranks(mine);
        const auto step = static_cast<std::int64_t>(step_or_none);
        EVENKEEL_CHECK_CODE(
            step >= 0 || i == 0, ErrorCode::kIo, "checkpoint", store.directory(), ": none of its ",
            i,
            " checkpoints is as it was written, the warnings say what is wrong: put "
            "a sound copy in place, or take another directory for the run "
            "(trainer.run_dir), or, if the change is yours, evenkeel inspect "
            "CHECKPOINT --accept");
        if (step_or_none == kOnlyAside) only_aside(store, main);
        if (step < 0) return "";
        const std::string path = store.path(step);
        if (!is_verified(path, readers)) continue;
        if (!main) return path;
        if (!fs::exists(fs::path(path) / kManifestName)) {
            log_info(path +
                     " has no manifest.json, as of an earlier version: what its files "
                     "hold is not verified");
        }
        // Only when there is one to go on from: without any, each start is to find them as this one does.
        for (std::size_t bad = 0; set_aside && bad < i; ++bad) {
            const std::string damaged = store.path(order[bad]);
            log_warning(concat(damaged, ": is kept as ", store.set_aside(order[bad])));
        }
        return path;
    }
}

void check_as_written(const std::string& directory, const CheckpointReaders& readers) {
    // Of other directories nothing says that a manifest must be there.
    const bool is_checkpoint = step_of_directory(directory) >= 0;
    EVENKEEL_CHECK_CODE(is_verified(directory, readers), ErrorCode::kIo, "checkpoint", directory,
                        ": is not as it was written, the warning says where (if the change is "
                        "yours, ",
                        is_checkpoint ? concat("evenkeel inspect ", directory, " --accept")
                                      : concat("remove its ", kManifestName),
                        ")");
}

std::string newest_checkpoint(const std::string& path, const CheckpointReaders& readers) {
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "checkpoint", path,
                        ": no such directory, want a run or a checkpoint in one");
    const fs::path checkpoints = fs::path(path) / "checkpoints";
    if (!fs::is_directory(checkpoints)) {
        check_as_written(path, readers);
        return path;
    }
    const std::string newest =
        newest_verified(CheckpointStore(checkpoints.string(), 0), readers, false);
    EVENKEEL_CHECK_CODE(!newest.empty(), ErrorCode::kIo, "checkpoint", path,
                        ": holds no complete checkpoint; train it first");
    return newest;
}

void write_file(const std::string& path, const std::string& text) {
    File file = File::create(path);
    file.write(text.data(), text.size());
    file.sync();
    file.close();
}

void write_file_atomically(const std::string& path, const std::string& text) {
    replace_file(path, [&](const std::string& unfinished) { write_file(unfinished, text); });
}

std::string read_file(const std::string& path) { return File::open_for_reading(path).read_rest(); }

}  // namespace evenkeel
