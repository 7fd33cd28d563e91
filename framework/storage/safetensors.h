// The safetensors file format: an 8-byte little-endian header length, a JSON header, raw row-major
// data. Files are treated as hostile: every length, offset, product and name is checked before use.
//
// Accepted is what the reference implementation accepts (white space around the header, any alignment,
// any order of names, tensors without elements), except that here a name may appear once only and hold
// no control characters, an entry has its three fields and no others, a tensor has at most 8 dimensions,
// sizes stay below 2^48 and their product below 2^63 even beside a zero, a file has at most 131072
// tensors, and "__metadata__" is an object of strings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/storage/file.h"
#include "framework/storage/hash.h"
#include "framework/tensor.h"

namespace evenkeel {

struct TensorInfo {
    std::string name;
    std::string dtype;  // as in the file: "F32", "BF16", "I64", ...
    Shape shape;
    std::uint64_t begin = 0;  // byte range, relative to the data section
    std::uint64_t end = 0;
};

// The type that has a file's type without loss; none for those that no Tensor has.
std::optional<DType> dtype_of_file_type(const std::string& name);

using SafetensorsMetadata = std::map<std::string, std::string>;

// Opens and checks a file; reads the header only. Tensor data is read on demand.
class SafetensorsReader {
  public:
    // Throws kIo naming the file and what is wrong with it.
    explicit SafetensorsReader(const std::string& path);

    const std::string& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const {
        return tensors_;
    }  // in the order of their data
    const SafetensorsMetadata& metadata() const { return metadata_; }
    bool contains(const std::string& name) const;
    const TensorInfo& info(const std::string& name) const;  // throws kIo when missing

    // Reads [begin, end) of dimension dim of a tensor into `out` (contiguous, that shape, on the CPU). F32, BF16,
    // F16 and F64 are converted to fp32 or bf16 through fp32; F16, F64 and I32 go into fp16, fp64 and int32 as they
    // are; anything else is kIo.
    // Touches only the bytes asked for. Callable from several threads.
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const;
    // Elements [first, first + out.numel()), in row-major order, into `out`, whatever its shape.
    void read_elements(const std::string& name, std::int64_t first, const Tensor& out) const;
    void read(const std::string& name, const Tensor& out) const;
    // As bf16 or int32 where the file has these, else as fp32.
    Tensor read(const std::string& name) const;

  private:
    void read_runs(const TensorInfo& tensor,
                   std::int64_t num_runs,
                   std::uint64_t first,
                   std::uint64_t stride,
                   std::uint64_t length,
                   const Tensor& out) const;

    File file_;
    std::uint64_t data_start_ = 0;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, std::size_t> index_;
    SafetensorsMetadata metadata_;
};

// Writes a file whose tensors are declared first and whose data comes one tensor at a time, so that no
// more than one need be in memory. Tensors must be written in the declared order, all of them.
class SafetensorsWriter {
  public:
    struct Declaration {
        std::string name;
        DType dtype;
        Shape shape;
    };
    // Throws kIo (no such directory, no permission, no room), and kInvalidArgument for declarations that
    // a reader would refuse.
    SafetensorsWriter(const std::string& path,
                      const std::vector<Declaration>& tensors,
                      const SafetensorsMetadata& metadata);

    void write(const std::string& name, const Tensor& tensor);
    // Flushes to the disk (fsync) and closes. A file without finish() is not valid.
    void finish();
    // Of what has been written so far, header included.
    std::uint64_t bytes() const { return hasher_.bytes(); }
    std::uint64_t hash() const { return hasher_.value(); }  // hash.h

  private:
    void put(const void* data, std::size_t bytes);

    File file_;
    Hasher hasher_;
    std::vector<Declaration> tensors_;
    std::size_t next_ = 0;
};

// Convenience for small files.
void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace evenkeel
