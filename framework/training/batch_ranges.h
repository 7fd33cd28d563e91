// Global batches that a run leaves out of its data. Batch n, counting from 1, is the batch_size samples that step
// n trains on in a run that leaves out nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace evenkeel {

struct BatchRange {
    std::int64_t first = 1, last = 1;  // both of them in it
};

// "1200-1350,4000": ranges and single batches, in any order. Throws kConfig naming trainer.skip_batches.
std::vector<BatchRange> parse_batch_ranges(const std::string& text);

// The first sample at or after `sample` from which batch_size samples belong to no batch of the ranges. It
// depends on nothing else, so that a resumed run sees what the run would have seen.
std::int64_t first_sample_outside(const std::vector<BatchRange>& ranges,
                                  std::int64_t sample,
                                  std::int64_t batch_size);

}  // namespace evenkeel
