// The safetensors files of a folder as one set of tensors: model.safetensors, or the shards that
// model.safetensors.index.json names. Folders are hostile input: index and files must say the same.
//
// Refused: an index whose file names are no plain names of .safetensors files; a file of it that is missing or is no
// regular file; a tensor that is in another file than the index says, in two, or in one without being in the index; a
// total_size that is neither the tensors' bytes nor, as some writers have it, the files'; both an index and a
// model.safetensors that it does not name; weights in other formats alone. Other files in the folder do not count.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/storage/safetensors.h"

namespace evenkeel::hugging_face {

struct ShardIndex {
    std::map<std::string, std::string> files;  // by tensor
    std::optional<std::uint64_t> total_size;   // none: not there, or no integer
};
// Throws kIo, naming `origin`.
ShardIndex parse_shard_index(const std::string& json, const std::string& origin);

class Shards {
  public:
    // Reads the files' headers. Throws kIo.
    explicit Shards(const std::string& directory);

    const std::string& directory() const { return directory_; }
    const std::vector<std::unique_ptr<SafetensorsReader>>& files() const { return files_; }
    std::uint64_t num_tensors() const { return file_of_.size(); }
    std::uint64_t bytes() const { return bytes_; }  // of all tensors
    std::vector<std::string> names() const;         // file by file, in the order of their data
    bool contains(const std::string& name) const { return file_of_.count(name) != 0; }
    const SafetensorsReader& file_of(const std::string& name) const;  // throws kIo when missing
    const TensorInfo& info(const std::string& name) const { return file_of(name).info(name); }

  private:
    void open_indexed(const std::string& index);
    void check_index(const ShardIndex& index, const std::string& origin) const;
    void add(const std::string& file);

    std::string directory_;
    std::vector<std::unique_ptr<SafetensorsReader>> files_;
    std::map<std::string, const SafetensorsReader*> file_of_;
    std::uint64_t bytes_ = 0;
};

}  // namespace evenkeel::hugging_face
