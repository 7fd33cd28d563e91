// Copies, conversions and fills of strided tensors. A thread moves one vector of the innermost run:
// 16 bytes of the narrower type, as one or two 16-byte accesses a side, where that run is
// contiguous on both sides and all rows are aligned; else one element. No shared memory.
//
// Floor: every element is read once and written once: numel * (size_of(from) + size_of(to)) bytes,
// over the GPU's copy bandwidth; a fill only writes. No FLOPs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "framework/error.h"
#include "framework/strided_cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
    T values[kCount];
};

// What a launch needs to find its way: the innermost run in vectors, the runs around it by index.
struct Walk {
    std::int64_t vectors;          // in all
    std::int64_t vectors_per_row;  // of the innermost run, the last one perhaps partial
    StridedRuns runs;              // count is at least 1
};

struct Place {
    std::int64_t to, from;  // offsets in elements
    int length;             // elements from there on
};

template <int kCount>
__device__ inline Place place_of(const Walk& walk, std::int64_t vector) {
    std::int64_t row = 0, at = vector;
    if (walk.runs.count > 1) {
        row = divide(vector, walk.vectors_per_row);
        at = vector - row * walk.vectors_per_row;
    }
    const std::int64_t left = walk.runs.sizes[0] - at * kCount;
    Place place{at * kCount * walk.runs.to[0], at * kCount * walk.runs.from[0],
                left < kCount ? static_cast<int>(left) : kCount};
#pragma unroll
    for (int i = 1; i < StridedRuns::kMost; ++i) {
        if (i >= walk.runs.count) break;
        const std::int64_t above = divide(row, walk.runs.sizes[i]);
        const std::int64_t index = row - above * walk.runs.sizes[i];
        place.to += index * walk.runs.to[i];
        place.from += index * walk.runs.from[i];
        row = above;
    }
    return place;
}

using cuda::widen;
__device__ inline float widen(__half value) { return __half2float(value); }

template <typename To, typename From>
__device__ inline To converted(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (std::is_same_v<To, float>) {
        return widen(value);
    } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
        return __float2bfloat16_rn(widen(value));
    } else {
        return __float2half_rn(widen(value));
    }
}

template <typename To, typename From, int kCount>
__global__ void __launch_bounds__(kThreads) copy_kernel(const Walk walk, To* to, const From* from) {
    const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (vector >= walk.vectors) return;
    const Place place = place_of<kCount>(walk, vector);
    to += place.to;
    from += place.from;
    if (place.length == kCount) {
        const auto read = *reinterpret_cast<const Vector<From, kCount>*>(from);
        Vector<To, kCount> written;
#pragma unroll
        for (int i = 0; i < kCount; ++i) written.values[i] = converted<To>(read.values[i]);
        *reinterpret_cast<Vector<To, kCount>*>(to) = written;
    } else {
        for (int i = 0; i < place.length; ++i) to[i] = converted<To>(from[i]);
    }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) fill_kernel(const Walk walk, T* to, const T value) {
    const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (vector >= walk.vectors) return;
    const Place place = place_of<kCount>(walk, vector);
    to += place.to;
    if (place.length == kCount) {
        Vector<T, kCount> written;
#pragma unroll
        for (int i = 0; i < kCount; ++i) written.values[i] = value;
        *reinterpret_cast<Vector<T, kCount>*>(to) = written;
    } else {
        for (int i = 0; i < place.length; ++i) to[i] = value;
    }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// Whether every row can be cut into vectors of `count` elements that start at multiples of their
// size.
bool takes_vectors(const StridedRuns& runs,
                   const std::int64_t* strides,
                   int count,
                   const void* data) {
    if (runs.count == 0 || strides[0] != 1 || !is_aligned(data)) return false;
    return std::all_of(strides + 1, strides + runs.count,
                       [&](std::int64_t stride) { return stride % count == 0; });
}

Walk walk_of(const StridedRuns& runs, int count) {
    Walk walk{0, 0, runs};
    if (runs.count == 0) {
        walk.runs.count = 1;
        walk.runs.sizes[0] = walk.runs.to[0] = walk.runs.from[0] = 1;
    }
    walk.vectors_per_row = (walk.runs.sizes[0] + count - 1) / count;
    walk.vectors = walk.vectors_per_row;
    for (int i = 1; i < walk.runs.count; ++i) walk.vectors *= walk.runs.sizes[i];
    return walk;
}

LaunchShape shape_of(const char* op, const Walk& walk) {
    return {grid_size(op, (walk.vectors + kThreads - 1) / kThreads), dim3(kThreads)};
}

template <typename To, typename From>
void copy_as(const StridedRuns& runs, void* to, const void* from) {
    constexpr const char* kOp = "Tensor::copy_from";
    constexpr int kCount = 16 / static_cast<int>(std::min(sizeof(To), sizeof(From)));
    auto* to_data = static_cast<To*>(to);
    const auto* from_data = static_cast<const From*>(from);
    if (takes_vectors(runs, runs.to, kCount, to) && takes_vectors(runs, runs.from, kCount, from)) {
        const Walk walk = walk_of(runs, kCount);
        launch(kOp, copy_kernel<To, From, kCount>, shape_of(kOp, walk), walk, to_data, from_data);
    } else {
        const Walk walk = walk_of(runs, 1);
        launch(kOp, copy_kernel<To, From, 1>, shape_of(kOp, walk), walk, to_data, from_data);
    }
}

template <typename T>
void fill_as(const StridedRuns& runs, void* to, T value) {
    constexpr const char* kOp = "Tensor::fill";
    constexpr int kCount = 16 / static_cast<int>(sizeof(T));
    auto* data = static_cast<T*>(to);
    if (takes_vectors(runs, runs.to, kCount, to)) {
        const Walk walk = walk_of(runs, kCount);
        launch(kOp, fill_kernel<T, kCount>, shape_of(kOp, walk), walk, data, value);
    } else {
        const Walk walk = walk_of(runs, 1);
        launch(kOp, fill_kernel<T, 1>, shape_of(kOp, walk), walk, data, value);
    }
}

template <typename To, typename From>
void convert(const StridedRuns& runs, void* to, const void* from) {
    if constexpr (!std::is_same_v<To, From>) copy_as<To, From>(runs, to, from);
}

[[noreturn]] void refuse(DType dtype) {
    throw_error(ErrorCode::kInternal, "copy_strided",
                concat("element type: got ", name_of(dtype), ", want fp32, bf16 or fp16"));
}

template <typename To>
void convert_to(const StridedRuns& runs, void* to, const void* from, DType from_type) {
    switch (from_type) {
        case DType::kFloat32:
            return convert<To, float>(runs, to, from);
        case DType::kBFloat16:
            return convert<To, __nv_bfloat16>(runs, to, from);
        case DType::kFloat16:
            return convert<To, __half>(runs, to, from);
        case DType::kInt32:
        case DType::kFloat64:
            refuse(from_type);
    }
}

}  // namespace

void copy_strided(
    const StridedRuns& runs, void* to, DType to_type, const void* from, DType from_type) {
    if (to_type == from_type) {  // the bits as they are
        return size_of(to_type) == 2 ? copy_as<std::uint16_t, std::uint16_t>(runs, to, from)
                                     : copy_as<std::uint32_t, std::uint32_t>(runs, to, from);
    }
    switch (to_type) {
        case DType::kFloat32:
            return convert_to<float>(runs, to, from, from_type);
        case DType::kBFloat16:
            return convert_to<__nv_bfloat16>(runs, to, from, from_type);
        case DType::kFloat16:
            return convert_to<__half>(runs, to, from, from_type);
        case DType::kInt32:
        case DType::kFloat64:
            refuse(to_type);
    }
}

void fill_strided(const StridedRuns& runs,
                  void* to,
                  std::size_t element_bytes,
                  std::uint32_t bits) {
    if (element_bytes == 2) return fill_as(runs, to, static_cast<std::uint16_t>(bits));
    fill_as(runs, to, bits);
}

}  // namespace evenkeel::cuda
