#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tests/gpu_emulator/machine_test_kernels.h"

namespace machine_test {
namespace {

__device__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ void copy16(void* to, const void* from, int read = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(read)
                 : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ void wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
__device__ void named_barrier(int number, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

__global__ void __launch_bounds__(128) neighbour(Case c) {
    __shared__ float values[128];
    const int t = threadIdx.x;
    values[t] = c.in[t];
    if (c.wrong != 1) __syncthreads();
    const float other = values[(t + 40) % 128];
    if (c.wrong != 2) __syncthreads();
    values[t] = 2 * other;
    __syncthreads();
    c.out[t] = values[127 - t];
}

__global__ void __launch_bounds__(128) warp_neighbour(Case c) {
    __shared__ float values[128];
    const int t = threadIdx.x;
    values[t] = c.in[t];
    if (c.wrong != 1) __syncwarp();
    c.out[t] = values[t ^ 5];
}

__global__ void __launch_bounds__(128) global_neighbour(Case c) {
    const int t = threadIdx.x;
    c.out[t] = c.in[t];
    if (c.wrong != 1) __syncthreads();
    c.out[128 + t] = c.out[(t + 64) % 128];
}

__global__ void __launch_bounds__(128) blocks(Case c) {
    const int b = blockIdx.x, t = threadIdx.x;
    float v = c.in[t];
    if (c.wrong == 2) v += c.out[(b ^ 1) * 128 + t];
    c.out[(c.wrong == 1 ? 0 : b) * 128 + t] = v;
}

__global__ void __launch_bounds__(128) atomics(Case c) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, static_cast<int>(c.in[threadIdx.x]));
    if (c.wrong == 1 && threadIdx.x == 77) sum = 5;
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(c.out, static_cast<float>(sum));
}

__global__ void __launch_bounds__(128) read_bound(Case c) {
    const int at = 1024 - 128 + threadIdx.x + (c.wrong == 1 ? 1 : 0);
    c.out[threadIdx.x] = c.in[at];
}

__global__ void __launch_bounds__(128) write_bound(Case c) {
    c.out[1024 - 128 + threadIdx.x + (c.wrong == 1 ? 1 : 0)] = 1;
}

__global__ void __launch_bounds__(128) static_shared(Case c) {
    __shared__ float first[128];
    __shared__ float second[128];
    const int t = threadIdx.x;
    first[t + (c.wrong == 1 ? 1 : 0)] = c.in[t];
    second[t] = c.in[t];
    c.out[t] = first[t + (c.wrong == 1 ? 1 : 0)] + second[t];
}

__global__ void __launch_bounds__(128) dynamic_shared(Case c) {
    extern __shared__ float values[];
    const int t = threadIdx.x + (c.wrong == 1 ? 1 : 0);
    values[t] = c.in[threadIdx.x];
    c.out[threadIdx.x] = values[t];
}

__global__ void __launch_bounds__(128) unwritten(Case c) {
    __shared__ float values[128];
    const int t = threadIdx.x;
    if (c.wrong != 1 || t != 3) values[t] = c.in[t];
    __syncthreads();
    c.out[t] = values[127 - t];
}

__global__ void __launch_bounds__(128) local_unwritten(Case c) {
    float values[16];
    for (int i = 0; i < (c.wrong == 1 ? 15 : 16); ++i) values[(i * 5 + threadIdx.x) % 16] = c.in[i];
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += values[(i * 3 + threadIdx.x) % 16];
    c.out[threadIdx.x] = sum;
}

__global__ void __launch_bounds__(128) misaligned(Case c) {
    const float4 v =
        *reinterpret_cast<const float4*>(c.in + 4 * threadIdx.x + (c.wrong == 1 ? 1 : 0));
    c.out[threadIdx.x] = v.x + v.w;
}

__global__ void __launch_bounds__(128) shuffle(Case c) {
    const int t = threadIdx.x;
    float v = c.in[t];
    if (c.wrong == 2 && t == 9) return;
    if (c.wrong == 1 && t % 32 >= 16) {
        v = __shfl_xor_sync(0xffffffffu, v, 2) + 1;
    } else {
        v = __shfl_xor_sync(c.wrong == 3 && t % 32 < 8 ? 0x1ffu : 0xffffffffu, v, 1);
    }
    c.out[t] = v;
}

__global__ void __launch_bounds__(128) barrier_branches(Case c) {
    __shared__ float values[128];
    const int t = threadIdx.x;
    values[t] = c.in[t];
    if (c.wrong == 2 && t == 100) return;
    if ((c.wrong == 1 ? t : t / 32) % 2 == 0) {
        asm volatile("bar.sync 0; // even" ::: "memory");
        values[t] += 1;
    } else {
        asm volatile("bar.sync 0; // odd" ::: "memory");
        values[t] += 2;
    }
    c.out[t] = values[t];
}

__global__ void __launch_bounds__(128) named_barriers(Case c) {
    __shared__ float values[128];
    const int t = threadIdx.x, group = t / 64;
    values[t] = c.in[t];
    named_barrier(c.wrong == 1 ? 1 : 1 + group, c.wrong == 2 && group == 1 ? 96 : 64);
    c.out[t] = values[group * 64 + (t + 33) % 64];
}

__global__ void __launch_bounds__(128) arrive(Case c) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    if (t < 64) {
        if (c.wrong != 1) values[t] = c.in[t];
        asm volatile("bar.arrive 3, 128;" ::: "memory");
        if (c.wrong != 0) values[t] = c.in[t];
    } else {
        asm volatile("bar.sync 3, 128;" ::: "memory");
        c.out[t] = values[127 - t];
    }
}

__global__ void __launch_bounds__(128) endless(Case c) {
    volatile float* out = c.out;
    out[threadIdx.x] = 1;
    while (c.wrong == 1 && out[threadIdx.x] == 1) {
    }
}

__global__ void __launch_bounds__(128) async_copy(Case c) {
    __shared__ __align__(16) float tiles[2][64];
    const int t = threadIdx.x;
    float* source = const_cast<float*>(c.in);
    auto fill = [&](int i) {
        if (t < 16 && i < 4) copy16(&tiles[i % 2][4 * t], source + 64 * i + 4 * t);
        commit();
    };
    float sum = 0;
    fill(0);
    fill(1);
    if (c.wrong == 6) source[64 + t % 64] = 3;
    for (int i = 0; i < 4; ++i) {
        if (c.wrong == 5) sum += tiles[i % 2][0];
        if (c.wrong == 4) {
            wait_group<2>();
        } else if (c.wrong != 1) {
            wait_group<1>();
        }
        if (c.wrong != 2) __syncthreads();
        sum += tiles[i % 2][(t + 7) % 64];
        if (c.wrong != 3) __syncthreads();
        fill(i + 2);
    }
    c.out[t] = sum;
}

__global__ void __launch_bounds__(128) zero_fill(Case c) {
    __shared__ __align__(16) float tile[128];
    const int t = threadIdx.x;
    if (t < 32) copy16(&tile[4 * t], c.in + 4 * t, t % 5 * 4);
    commit();
    wait_group<0>();
    __syncthreads();
    c.out[t] = tile[t];
}

// in: 16 x 16; out = in in^T, 16 x 16, by two products.
__global__ void __launch_bounds__(32) matrix(Case c) {
    __shared__ __align__(16) __nv_bfloat16 tile[16 * 16 + 8];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 32) tile[i] = __float2bfloat16(c.in[i]);
    __syncwarp();
    if (c.wrong == 2 && t == 31) return;
    unsigned a[4], b[4];
    const unsigned row = shared_address(tile + t % 16 * 16 + t / 16 * 8) + (c.wrong == 1 ? 2 : 0);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(row));
    for (int half = 0; half < 2; ++half) {
        float d[4] = {0, 0, 0, 0};
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[half]), "r"(b[half + 2]));
        for (int i = 0; i < 4; ++i) {
            c.out[(t / 4 + i / 2 * 8) * 16 + half * 8 + t % 4 * 2 + i % 2] = d[i];
        }
    }
}

__global__ void __launch_bounds__(128) reductions(Case c) {
    const int t = threadIdx.x;
    float sum = c.in[t];
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const unsigned odd = __ballot_sync(0xffffffffu, t % 2 == 1);
    const float up = __shfl_up_sync(0xffffffffu, c.in[t], 3, 16);
    const float down = __shfl_down_sync(0xffffffffu, c.in[t], 3, 16);
    const float fixed = __shfl_sync(0xffffffffu, c.in[t], 5, 8);
    const int count = __syncthreads_count(t % 3 == 0);
    c.out[t] = sum;
    c.out[128 + t] = static_cast<float>(odd);
    c.out[256 + t] = up;
    c.out[384 + t] = down;
    c.out[512 + t] = fixed;
    c.out[640 + t] = static_cast<float>(count);
}

__global__ void __launch_bounds__(32) strided(const float* in, float* out, int stride) {
    __shared__ float values[32 * 32];
    const int t = threadIdx.x;
    for (int i = 0; i < 32; ++i) values[i * 32 + t] = in[i * 32 + t];
    __syncwarp();
    out[t] = values[t * stride % 1024];
}

using Entry = void (*)(Case);
Entry entry(Kernel kernel) {
    switch (kernel) {
        case Kernel::kNeighbour:
            return neighbour;
        case Kernel::kWarpNeighbour:
            return warp_neighbour;
        case Kernel::kGlobalNeighbour:
            return global_neighbour;
        case Kernel::kBlocks:
            return blocks;
        case Kernel::kAtomics:
            return atomics;
        case Kernel::kReadBound:
            return read_bound;
        case Kernel::kWriteBound:
            return write_bound;
        case Kernel::kStaticShared:
            return static_shared;
        case Kernel::kDynamicShared:
            return dynamic_shared;
        case Kernel::kUnwritten:
            return unwritten;
        case Kernel::kLocalUnwritten:
            return local_unwritten;
        case Kernel::kMisaligned:
            return misaligned;
        case Kernel::kShuffle:
            return shuffle;
        case Kernel::kBarrierBranches:
            return barrier_branches;
        case Kernel::kNamedBarriers:
            return named_barriers;
        case Kernel::kArrive:
            return arrive;
        case Kernel::kEndless:
            return endless;
        case Kernel::kAsyncCopy:
            return async_copy;
        case Kernel::kZeroFill:
            return zero_fill;
        case Kernel::kMatrix:
            return matrix;
        case Kernel::kReductions:
            return reductions;
    }
    return nullptr;
}

}  // namespace

bool launch(Kernel kernel, const Case& c, int grid, int threads, int shared_bytes) {
    cudaGetLastError();  // of a faulty kernel before
    entry(kernel)<<<grid, threads, shared_bytes>>>(c);
    const bool launched = cudaGetLastError() == cudaSuccess;
    return cudaDeviceSynchronize() == cudaSuccess && launched;
}

bool launch_strided(const float* in, float* out, int stride) {
    cudaGetLastError();
    strided<<<1, 32>>>(in, out, stride);
    return cudaGetLastError() == cudaSuccess;
}

}  // namespace machine_test
