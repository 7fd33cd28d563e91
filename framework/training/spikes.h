// How far a number is from what it lately was, in standard deviations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace evenkeel {

inline constexpr std::size_t kLastingValues = 3;

// Of the gradient norm, to tell a spike (OLMo-core's rule for skipped steps: 6 deviations, 128 values, at
// least 64 of them). A value is compared with those before it, not with itself. Values that are far away
// stay out of the window, so that one spike does not hide the next; when as many as the window's half are
// far away one after another, the level has changed and the window begins anew with the next value.
class Deviation {
  public:
    Deviation(std::size_t window, std::size_t least, double limit)
        : window_(window), least_(least), limit_(limit) {}
    // Deviations above the mean (below: negative), and takes the value in; 0 with too few values. A value
    // that is not finite is infinitely far, and is not taken in.
    double add(double value);
    // The least of what the last kLastingValues calls of `add` returned; 0 before so many. Training in good health has
    // lone batches with a gradient far above the others': one says nothing, several in a row do.
    double lasting() const;

  private:
    std::size_t window_, least_, outside_ = 0;
    double away(double value);
    double limit_;
    std::deque<double> values_;
    std::deque<double> last_;  // what `add` returned
};

// OLMo 2's spike score (OLMo team 2025, section 3.2): the percentage of values that are at least seven
// standard deviations away from the mean of the last 1000. The first 64 are not judged.
class SpikeScore {
  public:
    void add(double value);
    double percent() const;

  private:
    std::deque<double> values_;
    std::int64_t judged_ = 0, spikes_ = 0;
};

}  // namespace evenkeel
