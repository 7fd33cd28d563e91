#include "model/hugging_face/gather.h"

#include <cstring>
#include <map>

#include "framework/error.h"
#include "model/hugging_face/finite.h"

namespace evenkeel::hugging_face {
namespace {

Tensor to_half(const Tensor& wide, const std::string& name, const std::string& origin) {
    const Tensor half = wide.to(DType::kFloat16);
    const std::int64_t bad = first_non_finite(half);
    EVENKEEL_CHECK_CODE(bad < 0, ErrorCode::kNonFinite, "export", origin, ": tensor ", name,
                        ": element ", to_string(position(bad, wide.shape())), " is ",
                        wide.view({wide.numel()}).data<float>()[bad],
                        ", too large for fp16; want bf16 or fp32");
    return half;
}

bool is_whole(const Target& target) {
    return target.parts.size() == 1 && target.parts[0].ours == 0 &&
           target.parts[0].map->shape == target.shape;
}

}  // namespace

Tensor read_whole(const TensorSource& weights, const std::string& name, DType dtype) {
    const Shape shape = weights.shape(name);
    const bool narrows = dtype == DType::kFloat16 && weights.dtype(name) != dtype;
    const Tensor tensor = Tensor::uninitialized(shape, narrows ? DType::kFloat32 : dtype);
    weights.read_slice(name, 0, 0, shape[0], tensor);
    check_finite(tensor, name, weights.origin());
    return narrows ? to_half(tensor, name, weights.origin()) : tensor;
}

std::vector<Target> targets(const std::vector<TensorMap>& maps) {
    std::vector<Target> found;
    std::map<std::string, std::size_t> index;
    for (const TensorMap& map : maps) {
        for (const TensorMap::Theirs& theirs : map.theirs) {
            const auto [at, is_new] = index.emplace(theirs.name, found.size());
            if (is_new) found.push_back({theirs.name, theirs.shape, {}});
        }
        std::int64_t ours = 0;
        for (const TensorMap::Piece& piece : map.pieces) {
            Target& target = found[index.at(map.theirs[piece.theirs].name)];
            target.parts.push_back({&map, ours, piece.begin, piece.count});
            ours += piece.count;
        }
    }
    return found;
}

DType dtype_of(const Target& target, const TensorSource& weights) {
    const DType first = weights.dtype(target.parts.at(0).map->ours);
    for (const Target::Part& part : target.parts) {
        if (weights.dtype(part.map->ours) != first) return DType::kFloat32;
    }
    return first;
}

const Tensor& Gatherer::read(const std::string& name, DType dtype) {
    if (name != name_ || last_.dtype() != dtype) {
        last_ = Tensor();  // before the next one is made
        last_ = read_whole(weights_, name, dtype);
        name_ = name;
    }
    return last_;
}

Tensor Gatherer::gather(const Target& target, DType dtype) {
    if (is_whole(target)) {
        last_ = Tensor();
        name_.clear();
        return read_whole(weights_, target.parts[0].map->ours, dtype);
    }
    const Tensor made = Tensor::uninitialized(target.shape, dtype);
    std::vector<bool> filled(static_cast<std::size_t>(made.numel()));
    const std::size_t size = size_of(dtype);
    for (const Target::Part& part : target.parts) {
        const Tensor& ours = read(part.map->ours, dtype);
        for (std::int64_t i = 0; i < part.count; ++i) {
            const std::byte* from = ours.raw() + (part.ours + i) * size;
            std::byte* to = made.raw() + (part.theirs + i) * size;
            if (!filled[static_cast<std::size_t>(part.theirs + i)]) {
                std::memcpy(to, from, size);
                filled[static_cast<std::size_t>(part.theirs + i)] = true;
                continue;
            }
            EVENKEEL_CHECK_CODE(std::memcmp(to, from, size) == 0, ErrorCode::kConfig, "export",
                                weights_.origin(), ": tensor ", part.map->ours, ": element ",
                                to_string(position(part.ours + i, part.map->shape)),
                                " differs from that of ", "another head, and \"", target.name,
                                "\" has one for all");
        }
    }
    for (std::size_t i = 0; i < filled.size(); ++i) {
        EVENKEEL_CHECK_CODE(filled[i], ErrorCode::kInternal, "export", "element ",
                            to_string(position(static_cast<std::int64_t>(i), target.shape)),
                            " of \"", target.name, "\" is made of nothing");
    }
    return made;
}

void check_shared(const TensorSource& weights, const std::vector<TensorMap>& maps) {
    Gatherer gatherer(weights);
    for (const Target& target : targets(maps)) {
        std::int64_t count = 0;
        for (const Target::Part& part : target.parts) count += part.count;
        if (count <= num_elements(target.shape)) continue;
        gatherer.gather(target, dtype_of(target, weights));
    }
}

}  // namespace evenkeel::hugging_face
