#include "framework/storage/staged_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

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
    path_ = concat(target_, ".tmp-", ::getpid());
    const bool is_new = fs::create_directory(path_, error);
    EVENKEEL_CHECK_CODE(is_new && !error, ErrorCode::kIo, kOp, path_,
                        ": cannot create: ", error ? error.message() : "it is there already");
}

StagedDirectory::~StagedDirectory() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
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
