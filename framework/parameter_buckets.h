// The memory of a model's parameters: flat buckets, in which parameters lie one behind the other. What is
// done to all of them alike (the optimizer's step, the gradient's norm, sums over ranks) is done to a few
// long arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/parameter.h"

namespace evenkeel {

// A run of the elements of this rank's part of a bucket that belongs to one parameter.
struct ParameterChunk {
    static constexpr std::int32_t kMost = 1 << 14;  // elements
    // Whether weight decay applies; whether this rank counts the elements in norms; Parameter::first_phase.
    enum Flags : std::uint32_t { kDecays = 1, kOwned = 2, kFirstPhase = 4 };
    std::int64_t begin = 0;  // counted from the part's first element
    std::int32_t count = 0;
    std::uint32_t flags = 0;

    bool decays() const { return (flags & kDecays) != 0; }
    bool owned() const { return (flags & kOwned) != 0; }
    bool has(std::uint32_t wanted) const { return (flags & wanted) == wanted; }
};
static_assert(sizeof(ParameterChunk) == 16);

// Parameters of one value type, derived or not, with whole_state or not, and one GradientSum (that of the first
// where several are joined).
struct ParameterBucket {
    // Elements: where a parameter begins that joins no other, so that kernels may read 16 bytes at once.
    static constexpr std::int64_t kAlignment = 8;

    std::vector<Parameter*> parameters;  // in memory order
    std::vector<std::int64_t> begins;    // of each, in elements; gaps hold zeros
    Tensor value;                        // [N] fp32 or bf16; see Parameter
    Tensor grad;                         // [N] fp32
    // What this rank updates: all N elements, or where the bucket is cut the data-parallel rank's equal part of them, M
    // elements from a multiple of kAlignment on.
    bool whole_state = false, is_cut = false;
    Tensor part_value, part_grad;        // [M], views
    Tensor master, exp_avg, exp_avg_sq;  // [M] fp32; see Parameter
    std::vector<ParameterChunk> chunks;  // of the part, in memory order; all that is trained
    Tensor device_chunks;                // [chunks, 4] int32: their bytes; on CUDA only
    std::int64_t first_chunk = 0;  // the first one's number among those of all parts of all buckets
};

// The data-parallel ranks, which cut the optimizer's state among themselves or not.
struct StateRanks {
    int size = 1;
    int rank = 0;
    bool cut = false;
};

class ParameterBuckets {
  public:
    static constexpr std::int64_t kElements = 8 << 20;

    ParameterBuckets() = default;
    // Gives every parameter its memory, zeros. Buckets are filled in the list's order up to `elements`,
    // or one matrix where that is longer; joined parameters stay together. What the parameters declare
    // must not change afterwards, and they must outlive this object. Where the state is cut, buckets are, but for
    // those of parameters with whole_state. Chunks end where parts do whether the state is cut or not, so that sums
    // over chunks have the same bits.
    ParameterBuckets(const ParameterList& parameters,
                     Device device,
                     std::int64_t elements = kElements,
                     const StateRanks& ranks = {});

    Device device() const { return device_; }
    const std::vector<ParameterBucket>& list() const { return buckets_; }
    bool is_cut() const { return ranks_.cut; }
    std::int64_t num_chunks() const { return num_chunks_; }  // of all parts
    void zero_gradients() const;
    // Of what a run's first phase leaves as it is (Parameter::first_phase).
    void zero_gradients_after_first_phase() const;

  private:
    Device device_ = Device::kCpu;
    StateRanks ranks_;
    std::int64_t num_chunks_ = 0;
    std::vector<ParameterBucket> buckets_;
};

}  // namespace evenkeel
