// AdamW over flat buckets: one block a chunk, 16-byte accesses but for up to three elements at each end of
// a chunk. An element gets the same operations as on the CPU, each of them correctly rounded and none
// contracted, so that the bits are the same. The first thread works out the gradient's scale from what the
// device holds, in double as on the CPU. Static shared memory: 4 bytes.
//
// Floor: 16 bytes read and 12 written an element, 2 more for a bf16 value, over the GPU's copy bandwidth.
// About 15 FLOPs an element, a division and a root among them.
#include <cuda_bf16.h>

#include "framework/cuda.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/adamw_cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kOp = "adamw_step";
constexpr int kThreads = 256;
constexpr int kVector = 4;  // elements

struct Arrays {
    const float* grad;
    float *exp_avg, *exp_avg_sq, *master;
    __nv_bfloat16* value;  // null: the value is the master
};

struct Factors {
    AdamWScalars s;
    float grad_scale, decay;
};

struct alignas(8) BFloat16x4 {
    __nv_bfloat16 values[kVector];
};

// NaN: the step is left out (makes_update).
__device__ inline float grad_scale_of(double loss,
                                      double squared_norm,
                                      double clip_norm,
                                      const UpdateLimits& limits) {
    const double norm = __dsqrt_rn(squared_norm);
    const bool finite = isfinite(loss) && isfinite(norm);
    if (!finite || loss > limits.loss || norm > limits.grad_norm) return __int_as_float(0x7fffffff);
    const bool clip = clip_norm > 0.0 && norm > clip_norm;
    return clip ? __double2float_rn(__ddiv_rn(clip_norm, norm)) : 1.0f;
}

__device__ inline void update(float grad, float& m, float& v, float& w, const Factors& f) {
    const AdamWScalars& s = f.s;
    const float g = __fmul_rn(grad, f.grad_scale);
    m = __fadd_rn(__fmul_rn(s.beta1, m), __fmul_rn(s.one_minus_beta1, g));
    v = __fadd_rn(__fmul_rn(s.beta2, v), __fmul_rn(s.one_minus_beta2, __fmul_rn(g, g)));
    const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v), s.root_scale), s.epsilon);
    const float change = __fdiv_rn(__fmul_rn(s.step_size, m), root);
    w = __fsub_rn(w, __fadd_rn(change, __fmul_rn(f.decay, w)));
}

template <bool kHasValue>
__device__ inline void update_one(const Arrays& a, std::int64_t i, const Factors& f) {
    float m = a.exp_avg[i], v = a.exp_avg_sq[i], w = a.master[i];
    update(a.grad[i], m, v, w, f);
    a.exp_avg[i] = m;
    a.exp_avg_sq[i] = v;
    a.master[i] = w;
    if constexpr (kHasValue) a.value[i] = __float2bfloat16_rn(w);
}

template <bool kHasValue>
__device__ inline void update_four(const Arrays& a, std::int64_t i, const Factors& f) {
    const float4 g = *reinterpret_cast<const float4*>(a.grad + i);
    float4 m = *reinterpret_cast<const float4*>(a.exp_avg + i);
    float4 v = *reinterpret_cast<const float4*>(a.exp_avg_sq + i);
    float4 w = *reinterpret_cast<const float4*>(a.master + i);
    update(g.x, m.x, v.x, w.x, f);
    update(g.y, m.y, v.y, w.y, f);
    update(g.z, m.z, v.z, w.z, f);
    update(g.w, m.w, v.w, w.w, f);
    *reinterpret_cast<float4*>(a.exp_avg + i) = m;
    *reinterpret_cast<float4*>(a.exp_avg_sq + i) = v;
    *reinterpret_cast<float4*>(a.master + i) = w;
    if constexpr (kHasValue) {
        const BFloat16x4 narrow = {{__float2bfloat16_rn(w.x), __float2bfloat16_rn(w.y),
                                    __float2bfloat16_rn(w.z), __float2bfloat16_rn(w.w)}};
        *reinterpret_cast<BFloat16x4*>(a.value + i) = narrow;
    }
}

template <bool kHasValue>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const ParameterChunk* chunks,
                                                         const Arrays arrays,
                                                         const AdamWScalars scalars,
                                                         double clip_norm,
                                                         const UpdateLimits limits,
                                                         const double* numbers) {
    __shared__ float shared_scale;
    const ParameterChunk chunk = chunks[blockIdx.x];
    if ((chunk.flags & scalars.wanted) != scalars.wanted) return;
    if (threadIdx.x == 0) {
        shared_scale =
            grad_scale_of(numbers[kLossIndex], numbers[kSquaredNormIndex], clip_norm, limits);
    }
    __syncthreads();
    const float grad_scale = shared_scale;
    if (isnan(grad_scale)) return;
    const bool decays = (chunk.flags & ParameterChunk::kDecays) != 0;
    const Factors factors{scalars, grad_scale, decays ? scalars.decay : 0.0f};

    const int thread = static_cast<int>(threadIdx.x);
    const int before_vectors = static_cast<int>(-chunk.begin & (kVector - 1));
    const int head = before_vectors < chunk.count ? before_vectors : chunk.count;
    const int vectors = (chunk.count - head) / kVector;
    const int tail = chunk.count - head - vectors * kVector;
    const std::int64_t first_vector = chunk.begin + head;
    for (int i = thread; i < vectors; i += kThreads) {
        update_four<kHasValue>(arrays, first_vector + i * kVector, factors);
    }
    if (thread < head) {
        update_one<kHasValue>(arrays, chunk.begin + thread, factors);
    } else if (thread >= kVector && thread - kVector < tail) {
        const std::int64_t end = chunk.begin + chunk.count;
        update_one<kHasValue>(arrays, end - tail + thread - kVector, factors);
    }
}

void check_alignment(const Tensor& tensor) {
    EVENKEEL_CHECK_CODE(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 16 == 0,
                        ErrorCode::kInternal, kOp, "a bucket is not aligned to 16 bytes");
}

}  // namespace

void adamw_step(const ParameterBuckets& buckets,
                const AdamWScalars& scalars,
                double clip_norm,
                const UpdateLimits& limits,
                const Tensor& numbers) {
    for (const ParameterBucket& bucket : buckets.list()) {
        if (bucket.chunks.empty()) continue;
        for (const Tensor& tensor : {bucket.part_grad, bucket.exp_avg, bucket.exp_avg_sq,
                                     bucket.master, bucket.part_value}) {
            check_alignment(tensor);
        }
        const bool has_value = bucket.part_value.dtype() == DType::kBFloat16;
        const Arrays arrays{
            bucket.part_grad.data<float>(), bucket.exp_avg.data<float>(),
            bucket.exp_avg_sq.data<float>(), bucket.master.data<float>(),
            has_value ? reinterpret_cast<__nv_bfloat16*>(bucket.part_value.raw()) : nullptr};
        const LaunchShape shape{grid_size(kOp, static_cast<std::int64_t>(bucket.chunks.size())),
                                dim3(kThreads)};
        launch(kOp, has_value ? adamw_kernel<true> : adamw_kernel<false>, shape,
               reinterpret_cast<const ParameterChunk*>(bucket.device_chunks.raw()), arrays, scalars,
               clip_norm, limits, numbers.data<double>());
    }
}

}  // namespace evenkeel::cuda
