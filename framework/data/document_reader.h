// Documents out of files of text or of JSON lines, one after the other.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace evenkeel {

// A document as its file has it: a text, or a line of JSON.
struct RawDocument {
    std::string text;
    std::string origin;  // "FILE:LINE", for messages
    bool is_json = false;
};

// The text itself; throws kIo naming the origin for a line that is no JSON object with a string of that name.
std::string text_of(RawDocument document, const std::string& text_key);

class DocumentReader {
  public:
    // inputs, separator: see CorpusOptions. Throws kConfig for an input that is not there, or where there is none.
    // Of directories, files that are no text are left out (text_files.h).
    DocumentReader(const std::vector<std::string>& inputs, std::string separator);

    // False at the end, where what was left out is told. Throws kConfig where there was no text at all.
    bool next(RawDocument& document);
    std::uint64_t bytes_read() const { return bytes_read_; }
    std::uint64_t total_bytes() const { return total_bytes_; }

  private:
    bool open_next();
    bool read_line(std::string& line);
    // Of a directory whatever is there is given, and what is no text left out.
    struct Input {
        std::string path;
        std::string directory;  // that it was found in; "" where it was named itself
    };
    std::vector<Input> files_;
    std::map<std::string, std::size_t> left_out_;  // of each directory, how many
    bool any_ = false;                             // a file has been read
    std::string separator_;
    std::size_t file_ = 0;  // the next to open
    std::ifstream input_;
    std::string path_;
    std::int64_t line_ = 0;
    std::uint64_t bytes_read_ = 0, total_bytes_ = 0;
};

}  // namespace evenkeel
