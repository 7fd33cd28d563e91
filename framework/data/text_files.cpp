#include "framework/data/text_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "framework/error.h"
#include "framework/log.h"

namespace evenkeel {

namespace fs = std::filesystem;

std::vector<std::string> regular_files(const std::string& directory, const char* op) {
    std::vector<std::string> files;
    std::error_code error;
    fs::directory_iterator it(directory, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
        std::error_code ignored;
        if (it->symlink_status(ignored).type() == fs::file_type::regular) {
            files.push_back(it->path().string());
        }
    }
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, op, directory, ": cannot list: ", error.message());
    std::sort(files.begin(), files.end());
    return files;
}

bool is_text(const std::string& bytes) { return bytes.find('\0') == std::string::npos; }

bool is_text_file(const std::string& path, const char* op) {
    std::ifstream input(path, std::ios::binary);
    EVENKEEL_CHECK_CODE(input.is_open(), ErrorCode::kIo, op, path, ": cannot open");
    std::string part(1 << 20, '\0');
    while (input.good()) {
        input.read(part.data(), static_cast<std::streamsize>(part.size()));
        const auto count = static_cast<std::size_t>(input.gcount());
        if (std::memchr(part.data(), 0, count) != nullptr) return false;
    }
    EVENKEEL_CHECK_CODE(!input.bad(), ErrorCode::kIo, op, path, ": cannot read");
    return true;
}

void tell_left_out(const std::string& directory, std::size_t files) {
    if (files == 0) return;
    log_info(concat(directory, ": ", files, files == 1 ? " file is" : " files are",
                    " left out: binary"));
}

}  // namespace evenkeel
