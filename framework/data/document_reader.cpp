#include "framework/data/document_reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "framework/error.h"
#include "framework/json.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

bool has_json_lines(const std::string& path) {
    return path.ends_with(".jsonl") || path.ends_with(".json");
}

void add_files(const std::string& input, std::vector<std::string>& files) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    EVENKEEL_CHECK_CODE(fs::is_regular_file(status) || fs::is_directory(status), ErrorCode::kConfig,
                        "data build", input,
                        fs::exists(status) ? ": got neither a file nor a directory, want one"
                                           : ": no such file or directory");
    if (!fs::is_directory(status)) return files.push_back(input);
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(input)) {
        if (entry.symlink_status().type() == fs::file_type::regular) {
            found.push_back(entry.path().string());
        }
    }
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

std::string text_of(RawDocument document, const std::string& text_key) {
    if (!document.is_json) return std::move(document.text);
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, "data build", document.origin, ": ",
                            what...);
    };
    auto json = nlohmann::json::parse(document.text, nullptr, false);
    check(json.is_object(), "want a JSON object on the line");
    const auto at = json.find(text_key);
    check(at != json.end(), "got no \"", text_key, "\", want the document's text");
    check(at->is_string(), "\"", text_key, "\": want a string");
    return std::move(at->get_ref<std::string&>());
}

DocumentReader::DocumentReader(const std::vector<std::string>& inputs, std::string separator)
    : separator_(std::move(separator)) {
    for (const std::string& input : inputs) add_files(input, files_);
    EVENKEEL_CHECK_CODE(!files_.empty(), ErrorCode::kConfig, "data build",
                        "got no file to read, want one or more");
    for (const std::string& file : files_) total_bytes_ += fs::file_size(file);
}

bool DocumentReader::open_next() {
    if (file_ == files_.size()) return false;
    path_ = files_[file_++];
    line_ = 0;
    input_ = std::ifstream(path_, std::ios::binary);
    EVENKEEL_CHECK_CODE(input_.is_open(), ErrorCode::kIo, "data build", path_, ": cannot open");
    return true;
}

// Without its end.
bool DocumentReader::read_line(std::string& line) {
    if (!std::getline(input_, line)) {
        EVENKEEL_CHECK_CODE(!input_.bad(), ErrorCode::kIo, "data build", path_, ": cannot read");
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
