// Which sequences a step sees: a seeded permutation of each epoch, a pure function of (seed, global
// sample index). The index is all there is to save and restore, and neither the data-parallel size nor
// the number of micro-batches changes what a step sees.
#pragma once

#include <cstdint>

namespace evenkeel {

class Sampler {
  public:
    Sampler(std::int64_t num_sequences, std::uint64_t seed);
    // Sequence number of global sample `index` (0, 1, 2, ... over the whole run).
    std::int64_t sequence(std::int64_t index) const;

  private:
    std::int64_t num_sequences_;
    std::uint64_t seed_;
};

}  // namespace evenkeel
