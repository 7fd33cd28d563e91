// The tensors of one safetensors file as a TensorSource: what this project's checkpoints are.
#pragma once

#include <string>
#include <vector>

#include "framework/storage/safetensors.h"
#include "framework/storage/tensor_source.h"

namespace evenkeel {

class SafetensorsSource : public TensorSource {
  public:
    // Throws as SafetensorsReader does.
    explicit SafetensorsSource(const std::string& path);

    const SafetensorsReader& reader() const { return reader_; }

    std::string origin() const override { return reader_.path(); }
    // What the metadata says under the key "model".
    std::string model() const override;
    std::vector<std::string> names() const override;
    bool contains(const std::string& name) const override;
    Shape shape(const std::string& name) const override;
    // Throws kIo for a tensor of a type that no Tensor has.
    DType dtype(const std::string& name) const override;
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override;

  private:
    SafetensorsReader reader_;
};

}  // namespace evenkeel
