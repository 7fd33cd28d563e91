// Rows of fp32 or bf16 in chunks of 16 bytes, as the kernels that read every element once move them.
// A thread owns whole chunks. Where they start at multiples of 16 bytes a full chunk is one access;
// elsewhere, and at the end of a row, its elements are moved one by one. Internal to .cu files.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "framework/tensor.h"

namespace evenkeel::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Elements in 16 bytes.
template <typename T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));

// Whether every row of `stride` elements from `data` on starts at a multiple of 16 bytes.
inline bool takes_chunks(const void* data, std::int64_t stride, std::size_t element_bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           stride * static_cast<std::int64_t>(element_bytes) % 16 == 0;
}

// Calls f.operator()<the type as kernels spell it>() for fp32 or bf16.
template <typename F>
void for_storage_type(DType dtype, F&& f) {
    if (dtype == DType::kBFloat16) {
        f.template operator()<__nv_bfloat16>();
    } else {
        f.template operator()<float>();
    }
}

// 64-bit division takes many times the instructions of a 32-bit one.
__device__ __forceinline__ std::int64_t divide(std::int64_t a, std::int64_t b) {
    if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
}

// How many of the elements from `at` on belong to the chunk that starts there; 0 or less: none.
template <typename T, typename Index>
__device__ __forceinline__ int chunk_size(Index width, Index at) {
    const Index left = width - at;
    return left < kChunk<T> ? static_cast<int>(left) : kChunk<T>;
}

// Which accesses a chunk may need, where the kernel is compiled for one answer; kMixed asks each time.
enum class Chunks {
    kWhole,   // every chunk is whole (or beyond the row) and starts at a multiple of 16 bytes
    kSingle,  // elements one by one
    kMixed,   // as `aligned` says, but the last chunk of a row may be partial
};

// Whether a chunk with `count` of `whole` elements is moved by 16 bytes at a time.
template <Chunks kChunks>
__device__ __forceinline__ bool moves_whole(int count, int whole, bool aligned) {
    if constexpr (kChunks == Chunks::kWhole) return count > 0;
    if constexpr (kChunks == Chunks::kSingle) return false;
    return aligned && count == whole;
}

template <typename T>
__device__ __forceinline__ void unpack(const uint4& packed, float (&values)[kChunk<T>]) {
    const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
            values[w] = __uint_as_float(words[w]);
        } else {
            values[2 * w] = __uint_as_float(words[w] << 16);
            values[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
        }
    }
}

template <typename T>
__device__ __forceinline__ uint4 pack(const float (&values)[kChunk<T>]) {
    std::uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
            words[w] = __float_as_uint(values[w]);
        } else {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * w], values[2 * w + 1]);
            words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// The first `count` elements; `fill` in place of the others. aligned: takes_chunks() said so.
template <Chunks kChunks = Chunks::kMixed, typename T>
__device__ __forceinline__ void load_chunk(
    const T* at, int count, float (&values)[kChunk<T>], bool aligned = true, float fill = 0.0f) {
    if (moves_whole<kChunks>(count, kChunk<T>, aligned)) {
        unpack<T>(__ldca(reinterpret_cast<const uint4*>(at)), values);
    } else {
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) {
            values[i] = kChunks != Chunks::kWhole && i < count ? widen(at[i]) : fill;
        }
    }
}

// The same as it stands in memory, zeros in place of what is missing: half the registers of floats.
template <Chunks kChunks = Chunks::kMixed, typename T>
__device__ __forceinline__ uint4 load_packed(const T* at, int count, bool aligned = true) {
    if (moves_whole<kChunks>(count, kChunk<T>, aligned)) {
        return __ldca(reinterpret_cast<const uint4*>(at));
    }
    float values[kChunk<T>];
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
        values[i] = kChunks != Chunks::kWhole && i < count ? widen(at[i]) : 0.0f;
    }
    return pack<T>(values);
}

// By intrinsics, as the loads: the compiler may split an assignment of 16 bytes into four.
template <Chunks kChunks = Chunks::kMixed, typename T>
__device__ __forceinline__ void store_chunk(T* at,
                                            int count,
                                            const float (&values)[kChunk<T>],
                                            bool aligned = true) {
    if (moves_whole<kChunks>(count, kChunk<T>, aligned)) {
        __stwb(reinterpret_cast<uint4*>(at), pack<T>(values));
    } else if constexpr (kChunks != Chunks::kWhole) {
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) {
            if (i >= count) break;
            if constexpr (sizeof(T) == 4) {
                at[i] = values[i];
            } else {
                at[i] = __float2bfloat16_rn(values[i]);
            }
        }
    }
}

// fp32 beside the chunks of another type: kCount a multiple of 4.
template <Chunks kChunks = Chunks::kMixed, int kCount>
__device__ __forceinline__ void load_floats(const float* at,
                                            int count,
                                            float (&values)[kCount],
                                            bool aligned = true) {
    if (moves_whole<kChunks>(count, kCount, aligned)) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
            const float4 four = __ldca(reinterpret_cast<const float4*>(at + i));
            values[i] = four.x, values[i + 1] = four.y;
            values[i + 2] = four.z, values[i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            values[i] = kChunks != Chunks::kWhole && i < count ? at[i] : 0.0f;
        }
    }
}

template <Chunks kChunks = Chunks::kMixed, int kCount>
__device__ __forceinline__ void store_floats(float* at,
                                             int count,
                                             const float (&values)[kCount],
                                             bool aligned = true) {
    if (moves_whole<kChunks>(count, kCount, aligned)) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
            __stwb(reinterpret_cast<float4*>(at + i),
                   make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]));
        }
    } else if constexpr (kChunks != Chunks::kWhole) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (i < count) at[i] = values[i];
        }
    }
}

// The same bits in every lane.
template <typename Real>
__device__ __forceinline__ Real sum_over_warp(Real value) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, step);
    }
    return value;
}

// Each CTA of kColumnSlices warps sums 32 columns of partial [slots, width], in double: every warp its share of the
// rows, then the shares in order. to += the sums.
inline constexpr int kColumnSlices = 8;

__device__ __forceinline__ void add_column_sums(const float* partial,
                                                std::int64_t slots,
                                                std::int64_t width,
                                                float* to) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int slice = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
    double sum = 0.0;
    if (column < width) {
#pragma unroll 4
        for (std::int64_t slot = slice; slot < slots; slot += kColumnSlices) {
            sum += partial[slot * width + column];
        }
    }
    __shared__ double of_slice[kColumnSlices][kWarp];
    of_slice[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || column >= width) return;
#pragma unroll
    for (int s = 1; s < kColumnSlices; ++s) sum += of_slice[s][lane];
    to[column] = static_cast<float>(to[column] + sum);
}

}  // namespace evenkeel::cuda
