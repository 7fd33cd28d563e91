// Whether a tensor is finite.
//
// Floor: every element is read once, 16 bytes at a time.
#include "framework/buffer.h"
#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/cuda/elementwise.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;

// `words` of 32 bits hold one or two elements each, whose exponents are the bits of low and high; an
// element is not finite when its exponent is all ones. `rest` is 1 where half a word is left.
struct Exponents {
    std::uint32_t low, high;
    __device__ bool all_ones(std::uint32_t word) const {
        return (word & low) == low || (word & high) == high;
    }
};

__global__ void __launch_bounds__(kThreads) all_finite_kernel(const std::uint16_t* data,
                                                              const std::int64_t halves,
                                                              const bool aligned,
                                                              const Exponents exponents,
                                                              unsigned* found) {
    constexpr int kHalves = 8;  // in 16 bytes
    const std::int64_t at =
        (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kHalves;
    std::uint32_t words[4] = {};
    if (aligned && at + kHalves <= halves) {
        const uint4 four = *reinterpret_cast<const uint4*>(data + at);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < kHalves; ++i) {
            if (at + i < halves) words[i / 2] |= std::uint32_t{data[at + i]} << (i % 2 * 16);
        }
    }
    bool bad = false;
#pragma unroll
    for (const std::uint32_t word : words) bad = bad || exponents.all_ones(word);
    if (bad) atomicOr(found, 1u);
}

Exponents exponents_of(DType dtype) {
    if (dtype == DType::kBFloat16) return {0x00007f80u, 0x7f800000u};
    return {0x7f800000u, 0x7f800000u};
}

}  // namespace

bool all_finite(const Tensor& tensor) {
    constexpr const char* kOp = "all_finite";
    const Tensor found = Tensor::zeros({1}, DType::kInt32, Device::kCuda);
    const std::int64_t halves = static_cast<std::int64_t>(tensor.bytes() / 2);
    launch(kOp, all_finite_kernel,
           {grid_size(kOp, (halves + 8 * kThreads - 1) / (8 * kThreads)), dim3(kThreads)},
           reinterpret_cast<const std::uint16_t*>(tensor.raw()), halves,
           takes_chunks(tensor.raw(), 0, 1), exponents_of(tensor.dtype()),
           reinterpret_cast<unsigned*>(found.data<std::int32_t>()));
    return *found.to(Device::kCpu).data<std::int32_t>() == 0;
}

}  // namespace evenkeel::cuda
