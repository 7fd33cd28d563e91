#include "framework/overlap.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace evenkeel {
namespace {

// One dimension of two tensors: their indices differ by least .. most.
struct Shift {
    std::int64_t stride, least, most;
};

// Whether shifts in these dimensions, outer ones first, can bridge a distance. What lies within a
// stride bridges less than that stride, so that only its two nearest multiples come into question.
bool can_bridge(const std::vector<Shift>& shifts, std::size_t at, std::int64_t distance) {
    if (at == shifts.size()) return distance == 0;
    const Shift& shift = shifts[at];
    const std::int64_t below = distance / shift.stride - (distance % shift.stride < 0 ? 1 : 0);
    for (std::int64_t n : {below, below + 1}) {
        if (n < shift.least || n > shift.most) continue;
        if (can_bridge(shifts, at + 1, distance - n * shift.stride)) return true;
    }
    return false;
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined() || a.device() != b.device()) return false;
    if (a.numel() == 0 || b.numel() == 0) return false;
    if (a.raw() == b.raw()) return true;
    const auto end = [](const Tensor& x) {
        std::int64_t last = 0;
        for (int i = 0; i < x.rank(); ++i) last += (x.size(i) - 1) * x.stride(i);
        return x.raw() + (last + 1) * static_cast<std::int64_t>(size_of(x.dtype()));
    };
    const std::less<const std::byte*> before;
    if (!before(a.raw(), end(b)) || !before(b.raw(), end(a))) return false;
    if (a.rank() != b.rank() || a.dtype() != b.dtype()) return false;
    std::vector<Shift> shifts;
    for (int i = 0; i < a.rank(); ++i) {
        if (a.size(i) == 1 && b.size(i) == 1) continue;
        const std::int64_t stride = a.size(i) == 1 ? b.stride(i) : a.stride(i);
        if (b.size(i) > 1 && b.stride(i) != stride) return false;
        shifts.push_back({stride, 1 - a.size(i), b.size(i) - 1});
    }
    std::sort(shifts.begin(), shifts.end(),
              [](const Shift& x, const Shift& y) { return x.stride > y.stride; });
    // a's element i and b's element j are the same where j - i, in strides, bridges from b to a.
    const std::int64_t bytes = a.raw() - b.raw();
    const auto size = static_cast<std::int64_t>(size_of(a.dtype()));
    return bytes % size == 0 && can_bridge(shifts, 0, bytes / size);
}

}  // namespace evenkeel
