// A directory of checkpoints, each a directory `step_00000020`, committed atomically: written under a
// temporary name, files flushed, then manifest.json (manifest.h), then renamed; at last the file `latest` names it.
// What has the final name is complete. What turns out to be damaged is renamed to `step_00000020.damaged`. Other
// entries of the directory are left alone. Failures are kIo and name the path.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "framework/storage/manifest.h"

namespace evenkeel {

class CheckpointStore {
  public:
    // keep: how many of the newest to keep, 0 for all.
    CheckpointStore(std::string directory, std::int64_t keep);

    const std::string& directory() const { return directory_; }

    // Makes an empty temporary directory for the step and returns its path. Removes what an earlier,
    // interrupted attempt left.
    std::string begin(std::int64_t step) const;
    std::string unfinished_path(std::int64_t step) const;  // that directory
    // Writes the manifest of the temporary directory, flushes it, gives it its final name (replacing an earlier
    // checkpoint of that step), lets `latest` name it and returns that path. `known` are files that are
    // flushed already and need not be read again for it; layout: Manifest::layout. Then removes the oldest beyond `keep`: those that are sound by
    // their files' sizes count, so that damaged ones do not push out the last sound one, and are left where they
    // are; never the one just written. A failure to remove is only a warning.
    std::string commit(std::int64_t step,
                       const std::string& layout = "{}",
                       const std::vector<ManifestFile>& known = {}) const;
    // Removes the temporary directory, if it can be.
    void discard(std::int64_t step) const noexcept;
    // Gives a committed checkpoint a name that no checkpoint has; returns the new path.
    std::string set_aside(std::int64_t step) const;

    std::vector<std::int64_t> steps() const;  // committed, ascending
    // Names of those that were set aside because they are damaged or because the run went back behind them.
    std::vector<std::string> kept_aside() const;
    std::string path(std::int64_t step) const;
    // The steps in the order in which to try them: the one that `latest` names, or that was committed directly
    // after it, then descending. A `latest` that is damaged or names nothing is a warning.
    std::vector<std::int64_t> newest_first() const;
    // Path of the first of these, or "" when there is none. It is not verified.
    std::string latest() const;

  private:
    std::int64_t pointer() const;  // -1: none, or no good
    void remove_unfinished() const;
    void remove_old(std::int64_t just_written) const;
    std::string directory_;
    std::int64_t keep_;
};

// Ranks that look at checkpoints together, in one directory that all of them see.
struct CheckpointReaders {
    int rank = 0;
    int ranks = 1;
    // The largest of what the ranks give. Collective.
    std::function<double(double)> max_over_ranks = [](double value) { return value; };
};

inline constexpr std::int64_t kAnyStep = std::numeric_limits<std::int64_t>::max();

// Path of the newest checkpoint of the store whose files are all as its manifest says, the work of hashing divided
// over the ranks, none of which waits for the others in one operation for long; "" when there is no checkpoint at all.
// Those that are not are warnings that name file and
// reason, and are set aside where `set_aside` says so and a sound one is found. One without a manifest, as earlier
// versions wrote them, is taken as it is. With `at_most`, the newest by name of at most so many steps. Throws kIo when
// none is sound, when one that would be taken cannot be read, and when all have been set aside. Collective.
std::string newest_verified(const CheckpointStore& store,
                            const CheckpointReaders& readers,
                            bool set_aside,
                            std::int64_t at_most = kAnyStep);

// Throws kIo when the directory has a manifest that its files do not match. Collective.
void check_as_written(const std::string& directory, const CheckpointReaders& readers = {});

// The newest verified checkpoint of the run in the directory `path`; `path` itself where that is no run, which has
// checkpoints/. Throws kIo when there is no such directory, no complete checkpoint in the run, or when the
// directory has a manifest that its files do not match. Collective.
std::string newest_checkpoint(const std::string& path, const CheckpointReaders& readers = {});

// Flushes a directory with all that is in it to the disk.
void sync_tree(const std::string& directory);
// Writes the text to a temporary file beside `path`, flushes it and renames it.
void write_file_atomically(const std::string& path, const std::string& text);
// Writes the text and flushes it: for files of a directory that gets its name later.
void write_file(const std::string& path, const std::string& text);
// The whole file; throws kIo naming it.
std::string read_file(const std::string& path);

}  // namespace evenkeel
