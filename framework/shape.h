// The sizes of a tensor's dimensions, outermost first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace evenkeel {

using Shape = std::vector<std::int64_t>;

// Product of the sizes; 1 for an empty shape. Throws on a negative size or a product beyond 2^63.
std::int64_t num_elements(const Shape& shape);

// "[2, 16, 64]".
std::string to_string(const Shape& shape);

}  // namespace evenkeel
