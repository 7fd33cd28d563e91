// A new directory that appears under its name complete or not at all: filled under another name beside it, flushed,
// then renamed. Failures are kIo and name the path.
#pragma once

#include <string>

namespace evenkeel {

class StagedDirectory {
  public:
    // Makes TARGET.tmp-PID, and TARGET's parents, and removes what processes left there that were killed: directories
    // of that name whose process is not here and whose lock nobody holds. Throws also when the target is there already.
    explicit StagedDirectory(const std::string& target);
    // Removes what was not committed. A process that is killed leaves it, and the next one removes it.
    ~StagedDirectory();
    StagedDirectory(const StagedDirectory&) = delete;
    StagedDirectory& operator=(const StagedDirectory&) = delete;

    const std::string& path() const { return path_; }  // where to write
    // Gives it its name. Throws, leaving all as it is, when the target has come to be in the meantime.
    void commit();

  private:
    std::string target_, path_;
    bool committed_ = false;
    int lock_ = -1;  // a descriptor
};

}  // namespace evenkeel
