#include "model/hugging_face/finite.h"

#include <algorithm>
#include <cmath>

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

// Elements whose exponent is all ones; in pieces that stay in the cache, so that the common case is one pass without
// branches.
template <typename Bits>
std::int64_t first_with_full_exponent(const void* data, std::int64_t count, Bits exponent) {
    constexpr std::int64_t kPiece = 4096;
    const auto* bits = static_cast<const Bits*>(data);
    for (std::int64_t begin = 0; begin < count; begin += kPiece) {
        const std::int64_t end = std::min(begin + kPiece, count);
        bool found = false;
        for (std::int64_t i = begin; i < end; ++i) found |= (bits[i] & exponent) == exponent;
        if (!found) continue;
        for (std::int64_t i = begin; i < end; ++i) {
            if ((bits[i] & exponent) == exponent) return i;
        }
    }
    return -1;
}

}  // namespace

std::int64_t first_non_finite(const Tensor& tensor) {
    const std::int64_t count = tensor.numel();
    switch (tensor.dtype()) {
        case DType::kFloat32:
            return first_with_full_exponent<std::uint32_t>(tensor.raw(), count, 0x7f800000u);
        case DType::kBFloat16:
            return first_with_full_exponent<std::uint16_t>(tensor.raw(), count, 0x7f80u);
        case DType::kFloat16:
            return first_with_full_exponent<std::uint16_t>(tensor.raw(), count, 0x7c00u);
        case DType::kFloat64:
            return first_with_full_exponent<std::uint64_t>(tensor.raw(), count, 0x7ffull << 52);
        case DType::kInt32:
            return -1;
    }
    return -1;
}

Shape position(std::int64_t index, const Shape& shape) {
    Shape place(shape.size());
    for (std::size_t i = shape.size(); i-- > 0;) {
        place[i] = index % shape[i];
        index /= shape[i];
    }
    return place;
}

void throw_non_finite(const std::string& origin, const std::string& name, const Shape& position) {
    throw_error(ErrorCode::kNonFinite, "hugging_face",
                concat(origin, ": tensor \"", name, "\": element ", to_string(position),
                       " is NaN or infinite, want finite weights"));
}

void check_finite(const Tensor& tensor, const std::string& name, const std::string& origin) {
    const std::int64_t index = first_non_finite(tensor);
    if (index >= 0) throw_non_finite(origin, name, position(index, tensor.shape()));
}

}  // namespace evenkeel::hugging_face
