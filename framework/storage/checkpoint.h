// A directory of checkpoints, each a directory `step_00000020`, committed atomically: written under a
// temporary name, files and directory flushed, then renamed. What has the final name is complete. Other
// entries of the directory are left alone. Failures are kIo and name the path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace evenkeel {

class CheckpointStore {
  public:
    // keep: how many of the newest to keep, 0 for all.
    CheckpointStore(std::string directory, std::int64_t keep);

    // Makes an empty temporary directory for the step and returns its path. Removes what an earlier,
    // interrupted attempt left.
    std::string begin(std::int64_t step) const;
    // Flushes the temporary directory, gives it its final name (replacing an earlier checkpoint of that
    // step) and returns that path; removes the oldest beyond `keep`, never the one just written.
    std::string commit(std::int64_t step) const;

    std::vector<std::int64_t> steps() const;  // committed, ascending
    std::string path(std::int64_t step) const;
    // Path of the newest committed checkpoint, or "" when there is none.
    std::string latest() const;

  private:
    void remove_unfinished() const;
    void remove_old(std::int64_t just_written) const;
    std::string directory_;
    std::int64_t keep_;
};

// The newest checkpoint of the run in the directory `path`; `path` itself where that is no run, which has
// checkpoints/. Throws kIo when there is no such directory, or no complete checkpoint in the run.
std::string newest_checkpoint(const std::string& path);

// Flushes a directory with all that is in it to the disk.
void sync_tree(const std::string& directory);
// Writes the text to a temporary file beside `path`, flushes it and renames it.
void write_file_atomically(const std::string& path, const std::string& text);
// The whole file; throws kIo naming it.
std::string read_file(const std::string& path);

}  // namespace evenkeel
