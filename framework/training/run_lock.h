// Keeps two processes from writing one run directory.
#pragma once

#include <string>

namespace evenkeel {

// Holds DIR/lock, an empty or one-line file with an flock on it. The kernel lets go of that when the process
// ends, however it ends, so that nothing stale is left behind: a run resumes after a kill, and the file itself
// says nothing. Also on NFS, where Linux turns flock into a lock on the server. It does not cover file systems
// mounted without locks on other machines (nolock, local_lock=flock), or without any: then the run goes on
// with a warning.
class RunLock {
  public:
    // The directory, which `setting` names, must be there. Throws kConfig, naming the process, when another holds it.
    explicit RunLock(const std::string& directory,
                     const char* op = "train",
                     const char* setting = "trainer.run_dir");
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

  private:
    int file_ = -1;
};

}  // namespace evenkeel
