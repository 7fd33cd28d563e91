#include "framework/storage/staged_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "framework/error.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/file.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOp = "directory";

void check_new(const std::string& target) {
    std::error_code ignored;
    EVENKEEL_CHECK_CODE(!fs::exists(fs::symlink_status(target, ignored)), ErrorCode::kIo, kOp,
                        target, ": is there already; want a new name");
}

constexpr const char* kUnfinished = ".tmp-";

// Takes the lock that a process holds on its unfinished directory; -1 where another has it.
int lock(const std::string& directory) {
    const int descriptor =
        ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
    if (descriptor >= 0) ::close(descriptor);
    return -1;
}

// What processes left that were killed: no process of that number is here, and none anywhere holds the lock.
void remove_leftovers(const std::string& target) {
    const std::string prefix = fs::path(target).filename().string() + kUnfinished;
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator it(parent_directory(target), error), end; !error && it != end;
         it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (name.starts_with(prefix)) names.push_back(it->path().string());
    }
    for (const std::string& path : names) {
        const std::string number = fs::path(path).filename().string().substr(prefix.size());
        const bool is_pid = !number.empty() && number.size() < 10 &&
                            number.find_first_not_of("0123456789") == std::string::npos;
        if (!is_pid || ::kill(std::stoi(number), 0) == 0 || errno != ESRCH) continue;
        const int descriptor = lock(path);
        if (descriptor < 0) continue;
        fs::remove_all(path, error);
        ::close(descriptor);
    }
}

}  // namespace

StagedDirectory::StagedDirectory(const std::string& target) {
    fs::path path = fs::path(target).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();  // "a/b/"
    target_ = path.string();
    EVENKEEL_CHECK_CODE(!target_.empty() && path.filename() != "." && path.filename() != "..",
                        ErrorCode::kIo, kOp, "\"", target, "\": want the name of a new directory");
    check_new(target_);
    std::error_code error;
    fs::create_directories(parent_directory(target_), error);
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, kOp, parent_directory(target_),
                        ": cannot create: ", error.message());
    remove_leftovers(target_);
    path_ = concat(target_, kUnfinished, ::getpid());
    const bool is_new = fs::create_directory(path_, error);
    EVENKEEL_CHECK_CODE(is_new && !error, ErrorCode::kIo, kOp, path_,
                        ": cannot create: ", error ? error.message() : "it is there already");
    lock_ = lock(path_);
}

StagedDirectory::~StagedDirectory() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
    if (lock_ >= 0) ::close(lock_);
}

void StagedDirectory::commit() {
    sync_tree(path_);
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) != 0) {
        // Not every file system can refuse to replace.
        check_new(target_);
        EVENKEEL_CHECK_CODE((errno == EINVAL || errno == ENOSYS) &&
                                std::rename(path_.c_str(), target_.c_str()) == 0,
                            ErrorCode::kIo, kOp, target_, ": cannot rename ", path_,
                            " to it: ", std::strerror(errno));
    }
    committed_ = true;
    sync_directory(parent_directory(target_));
}

}  // namespace evenkeel
