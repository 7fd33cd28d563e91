#include "framework/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kLongestPeriod = 1 << 20;

// The weights times a power of ten, if that makes whole numbers of them whose sum is small enough.
std::vector<std::int64_t> exact(const std::vector<double>& weights, std::int64_t most) {
    for (double scale = 1.0; scale <= 1e6; scale *= 10.0) {
        std::vector<std::int64_t> whole;
        double sum = 0.0;
        for (const double weight : weights) {
            const double scaled = weight * scale, rounded = std::round(scaled);
            sum += rounded;
            // A decimal's double is off by half an ulp, and the product by another.
            if (rounded < 1.0 || std::abs(scaled - rounded) > 1e-15 * scaled || sum > 0x1p52) break;
            whole.push_back(static_cast<std::int64_t>(rounded));
        }
        if (whole.size() < weights.size()) continue;
        std::int64_t divisor = 0;
        for (const std::int64_t value : whole) divisor = std::gcd(divisor, value);
        for (std::int64_t& value : whole) value /= divisor;
        if (static_cast<std::int64_t>(sum) / divisor <= most) return whole;
    }
    return {};
}

}  // namespace

std::vector<std::int64_t> share_numerators(const std::vector<double>& weights, std::int64_t most) {
    if (auto whole = exact(weights, most); !whole.empty()) return whole;
    // The largest remainders get what rounding down leaves, and nobody gets nothing. No sum may overflow: a power of two
    // less changes no other bit.
    const int exponent = std::ilogb(*std::max_element(weights.begin(), weights.end()));
    std::vector<double> scaled;
    for (const double weight : weights) scaled.push_back(std::ldexp(weight, -exponent));
    const double sum = std::accumulate(scaled.begin(), scaled.end(), 0.0);
    std::vector<std::int64_t> parts;
    std::vector<std::pair<double, std::size_t>> remainders;
    std::int64_t left = most;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const double share = scaled[i] / sum * static_cast<double>(most);
        const auto part = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(share)));
        remainders.emplace_back(static_cast<double>(part) - share, i);
        parts.push_back(part);
        left -= part;
    }
    std::sort(remainders.begin(), remainders.end());
    for (std::size_t i = 0; left > 0; i = (i + 1) % parts.size(), --left) {
        ++parts[remainders[i].second];
    }
    for (; left < 0; ++left) --*std::max_element(parts.begin(), parts.end());
    return parts;
}

// Sample j of a corpus of share a / W may stand nowhere before floor((j - 1) W / a) and must stand before
// ceil(j W / a). Taking, for each sample, the corpus whose next one is due first keeps all of these bounds, since the
// shares add up to 1 (Baruah, Cohen, Plaxton and Varvel 1996, "Proportionate progress", for one resource).
Blend::Blend(const std::vector<double>& weights) {
    EVENKEEL_CHECK_CODE(
        !weights.empty() && weights.size() <= static_cast<std::size_t>(kLongestPeriod) / 16,
        ErrorCode::kConfig, "data", "blend: got ", weights.size(), " corpora, want 1 to ",
        kLongestPeriod / 16);
    for (const double weight : weights) {
        EVENKEEL_CHECK_CODE(std::isfinite(weight) && weight > 0.0, ErrorCode::kConfig, "data",
                            "data.weights: got ", weight, ", want positive numbers");
    }
    numerators_ = share_numerators(weights, kLongestPeriod);
    const std::int64_t length =
        std::accumulate(numerators_.begin(), numerators_.end(), std::int64_t{0});
    const std::size_t count = weights.size();
    std::vector<std::uint32_t> taken(count, 0);
    std::vector<std::int64_t> release(count, 0), due(count);
    const auto due_of = [&](std::size_t c) {
        return ((taken[c] + 1) * length + numerators_[c] - 1) / numerators_[c];
    };
    for (std::size_t c = 0; c < count; ++c) due[c] = due_of(c);
    slots_.reserve(static_cast<std::size_t>(length));
    for (std::int64_t n = 0; n < length; ++n) {
        std::size_t best = count;
        for (std::size_t c = 0; c < count; ++c) {
            if (release[c] <= n && (best == count || due[c] < due[best])) best = c;
        }
        EVENKEEL_CHECK_CODE(best < count && due[best] > n, ErrorCode::kInternal, "data",
                            "blend: sample ", n, " has no corpus");
        slots_.push_back({static_cast<std::uint32_t>(best), taken[best]++});
        release[best] = taken[best] * length / numerators_[best];
        due[best] = due_of(best);
    }
}

Blend::Place Blend::place(std::int64_t index) const {
    EVENKEEL_CHECK(index >= 0, "data", "sample: got ", index, ", want 0 or more");
    const std::int64_t length = period();
    const Slot& slot = slots_[static_cast<std::size_t>(index % length)];
    return {slot.corpus, index / length * numerators_[slot.corpus] + slot.ordinal};
}

}  // namespace evenkeel
