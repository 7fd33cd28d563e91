#include "framework/convert.h"

#include "framework/convert_rows.h"

namespace evenkeel {

void widen(const bfloat16* from, float* to, std::int64_t count) {
    EVENKEEL_FOR_CURRENT_ISA(widen_row)(reinterpret_cast<const std::uint16_t*>(from), to, count);
}

void narrow(const float* from, bfloat16* to, std::int64_t count) {
    EVENKEEL_FOR_CURRENT_ISA(narrow_row)(from, reinterpret_cast<std::uint16_t*>(to), count);
}

}  // namespace evenkeel
