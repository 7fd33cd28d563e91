// Kernels for the tests of launches; launched through framework/cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace evenkeel::testing {

// Every thread of `blocks` blocks of `threads` threads writes its number to out[block * threads +
// thread], by way of `shared_bytes` of dynamic shared memory.
void launch_number_threads(std::int64_t blocks,
                           int threads,
                           std::size_t shared_bytes,
                           std::int32_t* out);

// One block of 32 threads with 128 bytes of shared memory of its own beside the `shared_bytes`:
// thread t writes 31 - t + (n - 1) to out[t], where n is how many numbers those bytes hold.
void launch_both_memories(std::size_t shared_bytes, std::int32_t* out);

// A grid of that many blocks, checked before it is cut to 32 bits; nothing is written.
void launch_grid(std::int64_t x, std::int64_t y, std::int64_t z);

// Whether the CUDA runtime still holds an error.
bool error_is_pending();

}  // namespace evenkeel::testing
