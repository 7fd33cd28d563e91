// Small kernels, each with a right and a wrong way, chosen by `wrong`.
#pragma once

#include <cstdint>

namespace machine_test {

struct Case {
    const float* in;  // 1024
    float* out;       // 1024
    int wrong;        // 0: as it should be
};

enum class Kernel {
    kNeighbour,        // exchange through shared memory; 1: no barrier, 2: too early a reuse
    kWarpNeighbour,    // the same in a warp; 1: no __syncwarp
    kGlobalNeighbour,  // through global memory; 1: no barrier
    kBlocks,           // 1: two blocks write one place, 2: one reads what the other writes
    kAtomics,          // sums by atomics; 1: a plain write among them
    kReadBound,        // 1: one past the input
    kWriteBound,       // 1: one past the output
    kStaticShared,     // 1: writes behind a static array
    kDynamicShared,    // 1: writes behind the dynamic part
    kUnwritten,        // 1: reads shared memory nobody wrote
    kLocalUnwritten,   // 1: reads local memory nobody wrote
    kMisaligned,       // 1: a float4 at an odd float
    kShuffle,  // 1: half of the warp shuffles elsewhere, 2: after an exit, 3: different masks
    kBarrierBranches,  // 1: lanes of a warp at two barriers, 2: threads exit before one
    kNamedBarriers,    // two groups of warps; 1: one group with the other's number, 2: wrong count
    kArrive,   // two warps hand data to two; 1: they arrive before they wrote, 2: write again
    kEndless,  // 1: never ends
    // cp.async double buffer; 1: no wait, 2: no barrier after it, 3: refilled too early,
    // 4: waits for one group too few, 5: read between, 6: source overwritten
    kAsyncCopy,
    kZeroFill,   // cp.async of few bytes
    kMatrix,     // ldmatrix and mma: out = in in^T; 1: misaligned row, 2: divergent
    kReductions  // shuffles, votes and __syncthreads_count
};

// blocks x threads with shared_bytes of dynamic shared memory; false if the launch failed.
bool launch(Kernel kernel, const Case& c, int blocks, int threads, int shared_bytes);

// Bank conflicts: every thread reads float4 or float at a stride.
bool launch_strided(const float* in, float* out, int stride);

}  // namespace machine_test
