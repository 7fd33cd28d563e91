// In place of framework/convert.cpp, whose vectors are GCC's: one element after the other.
#include "framework/convert.h"

namespace evenkeel {

void widen(const bfloat16* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void narrow(const float* from, bfloat16* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<bfloat16>(from[i]);
}

}  // namespace evenkeel
