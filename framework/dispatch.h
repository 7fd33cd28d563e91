// Turns run-time values into template arguments, once, at the host boundary of an operation.
#pragma once

#include <type_traits>
#include <utility>

#include "framework/dtype.h"
#include "framework/error.h"

namespace evenkeel {

// Calls f.template operator()<T>() with T = float or bfloat16.
template <typename F>
decltype(auto) dispatch_float(DType dtype, const char* op, F&& f) {
    EVENKEEL_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, op, "element type: got ",
                   name_of(dtype), ", want fp32 or bf16");
    if (dtype == DType::kBFloat16) return std::forward<F>(f).template operator()<bfloat16>();
    return std::forward<F>(f).template operator()<float>();
}

// Calls f.template operator()<V>() for the V in Values that equals value; throws with the list if none.
template <auto... Values, typename T, typename F>
void dispatch_value(T value, const char* op, const char* name, F&& f) {
    const bool found = ((value == Values ? (f.template operator()<Values>(), true) : false) || ...);
    if (!found) {
        std::string list;
        ((list += (list.empty() ? "" : ", ") + concat(Values)), ...);
        throw_error(ErrorCode::kInvalidArgument, op,
                    concat(name, ": got ", value, ", want one of ", list));
    }
}

}  // namespace evenkeel
