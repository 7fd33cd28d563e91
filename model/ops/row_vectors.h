// Loops over a row's vectors, for sources that are compiled once per instruction set (framework/simd.h).
#pragma once

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {

// Calls f(index, load, store) for whole vectors of [0, width) and for what is left: load(p) and store(p, v)
// move the vector's elements at p + index.
template <typename F>
EVENKEEL_INLINE void for_each_vector(std::int64_t width, F&& f) {
    std::int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes) {
        f([c](const auto* p) { return load(p + c); }, [c](auto* p, Vec v) { store(p + c, v); });
    }
    if (c < width) {
        const std::int64_t count = width - c;
        f([=](const auto* p) { return load_partial(p + c, count); },
          [=](auto* p, Vec v) { store_partial(p + c, v, count); });
    }
}

// Calls f.operator()<storage type>().
template <typename F>
EVENKEEL_INLINE void for_type(bool bf16, F&& f) {
    if (bf16) {
        f.template operator()<std::uint16_t>();
    } else {
        f.template operator()<float>();
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
