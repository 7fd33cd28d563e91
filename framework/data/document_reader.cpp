#include "framework/data/document_reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "framework/data/text_files.h"
#include "framework/error.h"
#include "framework/json.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "data build";

bool has_json_lines(const std::string& path) {
    return path.ends_with(".jsonl") || path.ends_with(".json");
}

}  // namespace

std::string text_of(RawDocument document, const std::string& text_key) {
    if (!document.is_json) return std::move(document.text);
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, kOp, document.origin, ": ", what...);
    };
    auto json = nlohmann::json::parse(document.text, nullptr, false);
    check(json.is_object(), "want a JSON object on the line");
    const auto at = json.find(text_key);
    check(at != json.end(), "got no \"", text_key,
          "\", want the document's text; data build --text-key names another");
    check(at->is_string(), "\"", text_key, "\": want a string");
    return std::move(at->get_ref<std::string&>());
}

DocumentReader::DocumentReader(const std::vector<std::string>& inputs, std::string separator)
    : separator_(std::move(separator)) {
    for (const std::string& input : inputs) {
        std::error_code error;
        const fs::file_status status = fs::status(input, error);
        EVENKEEL_CHECK_CODE(fs::is_regular_file(status) || fs::is_directory(status),
                            ErrorCode::kConfig, kOp, input,
                            fs::exists(status) ? ": got neither a file nor a directory, want one"
                                               : ": no such file or directory");
        if (!fs::is_directory(status)) {
            files_.push_back({input, ""});
            continue;
        }
        for (std::string& path : regular_files(input, kOp)) {
            files_.push_back({std::move(path), input});
        }
    }
    EVENKEEL_CHECK_CODE(!files_.empty(), ErrorCode::kConfig, kOp,
                        "got no file to read, want one or more");
    for (const Input& file : files_) total_bytes_ += fs::file_size(file.path);
}

bool DocumentReader::open_next() {
    while (file_ < files_.size()) {
        const Input& file = files_[file_++];
        // Lines of JSON are checked as they are read. Just before it is read, so that the second time finds it in memory.
        if (!file.directory.empty() && !has_json_lines(file.path) &&
            !is_text_file(file.path, kOp)) {
            ++left_out_[file.directory];
            bytes_read_ += fs::file_size(file.path);
            continue;
        }
        path_ = file.path;
        line_ = 0;
        any_ = true;
        input_ = std::ifstream(path_, std::ios::binary);
        EVENKEEL_CHECK_CODE(input_.is_open(), ErrorCode::kIo, kOp, path_, ": cannot open");
        return true;
    }
    EVENKEEL_CHECK_CODE(any_, ErrorCode::kConfig, kOp, "got ", files_.size(),
                        files_.size() == 1 ? " file" : " files", " in ", files_.front().directory,
                        ", binary all, want text");
    for (const auto& [directory, count] : std::exchange(left_out_, {})) {
        tell_left_out(directory, count);
    }
    return false;
}

// Without its end.
bool DocumentReader::read_line(std::string& line) {
    if (!std::getline(input_, line)) {
        EVENKEEL_CHECK_CODE(!input_.bad(), ErrorCode::kIo, kOp, path_, ": cannot read");
        return false;
    }
    ++line_;
    bytes_read_ += line.size() + (input_.eof() ? 0 : 1);
    return true;
}

bool DocumentReader::next(RawDocument& document) {
    std::string line;
    while (input_.is_open() || open_next()) {
        document = {"", concat(path_, ":", line_ + 1), has_json_lines(path_)};
        bool complete = false, any = false;
        while (!complete && read_line(line)) {
            if (document.is_json) {
                document.origin = concat(path_, ":", line_);
                document.text = line;
                complete = line.find_first_not_of(" \t\r") != std::string::npos;
            } else if (!separator_.empty() && line == separator_) {
                complete = true;
            } else {
                document.text += line;
                if (!input_.eof()) document.text += '\n';
            }
            any = true;
        }
        if (complete || (any && !document.is_json && !document.text.empty())) {
            if (!complete) input_.close();
            return true;
        }
        input_.close();
    }
    return false;
}

}  // namespace evenkeel
