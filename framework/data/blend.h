// Which of several corpora each sample of a run comes from: a fixed sequence that keeps every corpus's share as near
// to its weight as whole samples can, at any point of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace evenkeel {

class Blend {
  public:
    // A positive weight for each corpus, of any sum. Shares become fractions of at most 2^20: exactly the weights'
    // where these are decimals of few digits, else the nearest, which numerators() and period() say.
    explicit Blend(const std::vector<double>& weights);

    struct Place {
        std::size_t corpus = 0;
        std::int64_t index = 0;  // of the sample among those of its corpus: 0, 1, 2, ..
    };
    // Of sample `index` (0, 1, 2, .. over the whole run). Among the first n samples a corpus of weight a / period has
    // more than n a / period - 1 and fewer than n a / period + 1.
    Place place(std::int64_t index) const;

    const std::vector<std::int64_t>& numerators() const { return numerators_; }
    std::int64_t period() const { return static_cast<std::int64_t>(slots_.size()); }

  private:
    struct Slot {
        std::uint32_t corpus, ordinal;
    };
    std::vector<std::int64_t> numerators_;
    std::vector<Slot> slots_;  // of one period, 8 bytes each
};

// Fractions of a common denominator, of at most `most`, for shares in proportion to these weights; see Blend.
std::vector<std::int64_t> share_numerators(const std::vector<double>& weights, std::int64_t most);

}  // namespace evenkeel
