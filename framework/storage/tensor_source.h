// Named tensors of a model, whatever they are stored in: a checkpoint's file, or a folder of another library's,
// whose names and layouts are turned into this project's while reading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

class TensorSource {
  public:
    virtual ~TensorSource() = default;
    // What messages call it: a path.
    virtual std::string origin() const = 0;
    // What it says of the model whose weights it holds, as TrainableModel::description; "": nothing.
    virtual std::string model() const { return ""; }
    virtual std::vector<std::string> names() const = 0;
    virtual bool contains(const std::string& name) const = 0;
    virtual Shape shape(const std::string& name) const = 0;  // throws kIo when missing
    // As in the file, or what read_slice loses nothing in.
    virtual DType dtype(const std::string& name) const = 0;
    // Reads [begin, end) of dimension dim into `out` (contiguous, that shape, on the CPU), converting as
    // SafetensorsReader::read_slice does; touches only the bytes asked for. Throws kIo.
    virtual void read_slice(const std::string& name,
                            int dim,
                            std::int64_t begin,
                            std::int64_t end,
                            const Tensor& out) const = 0;
};

}  // namespace evenkeel
