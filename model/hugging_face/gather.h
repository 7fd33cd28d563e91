// Tensors of a folder put together from those of this project.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/dtype.h"
#include "framework/storage/tensor_source.h"
#include "model/hugging_face/tensor_map.h"

namespace evenkeel::hugging_face {

// In that type. Throws kNonFinite for a value that is NaN or infinite, or too large for fp16.
Tensor read_whole(const TensorSource& weights, const std::string& name, DType dtype);

// A tensor of a folder, and where its elements come from.
struct Target {
    struct Part {
        const TensorMap* map = nullptr;
        std::int64_t ours = 0, theirs = 0, count = 0;  // first elements, and how many
    };
    std::string name;
    Shape shape;
    std::vector<Part> parts;
};
// In the order in which the maps name them first. The maps must outlive the result.
std::vector<Target> targets(const std::vector<TensorMap>& maps);

// The type that loses nothing: the one that all its parts have, else fp32.
DType dtype_of(const Target& target, const TensorSource& weights);

// Reads what targets are made of. Keeps the parameter it read last: the parts of one are often neighbours.
class Gatherer {
  public:
    explicit Gatherer(const TensorSource& weights) : weights_(weights) {}
    // Throws kConfig when parts overlap and differ, naming both places.
    Tensor gather(const Target& target, DType dtype);

  private:
    const Tensor& read(const std::string& name, DType dtype);

    const TensorSource& weights_;
    std::string name_;
    Tensor last_;
};

// Throws as gather does for every target whose parts overlap; reads no others.
void check_shared(const TensorSource& weights, const std::vector<TensorMap>& maps);

}  // namespace evenkeel::hugging_face
