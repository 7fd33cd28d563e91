#include "framework/storage/replace_file.h"

#include <cstdio>
#include <filesystem>

#include "framework/error.h"
#include "framework/storage/file.h"

namespace evenkeel {

namespace fs = std::filesystem;

void check_replaceable(const std::string& path) {
    std::error_code ignored;  // writing reports the reason
    const fs::file_status status = fs::status(path, ignored);
    EVENKEEL_CHECK_CODE(!fs::exists(status) || fs::is_regular_file(status), ErrorCode::kIo,
                        "checkpoint", path, ": got a directory, a device or a pipe, want a file");
}

void replace_file(const std::string& path,
                  const std::function<void(const std::string& unfinished)>& write) {
    const std::string unfinished = path + ".tmp";
    check_replaceable(path);
    check_replaceable(unfinished);
    try {
        write(unfinished);
        std::error_code error;
        fs::rename(unfinished, path, error);
        EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "checkpoint", unfinished, ": cannot rename to ",
                            path, ": ", error.message());
    } catch (...) {
        std::remove(unfinished.c_str());
        throw;
    }
    sync_directory(parent_directory(path));
}

}  // namespace evenkeel
