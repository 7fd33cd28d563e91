// One pass over memory: a block's moments and master stay in the first-level cache from the first read
// to the rounding of its value. Reads 16 and writes 12 bytes an element, 2 more for a bf16 value.
//
// Built with -ffp-contract=off: an element gets the same bits in a vector body, in a loop's remainder
// and at any vector width.
#include "framework/optimizer/adamw_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/convert.h"

namespace evenkeel::cpu {
namespace {

constexpr std::int64_t kBlock = 2048;  // 4 fp32 arrays: 32 KiB

struct Block {
    const ParameterBucket* bucket;
    std::int64_t begin, end;
    bool decays;
};

__attribute__((target_clones("avx512f", "avx2", "default"))) void update_rows(
    std::int64_t count,
    const float* __restrict__ grad,
    float* __restrict__ exp_avg,
    float* __restrict__ exp_avg_sq,
    float* __restrict__ master,
    const AdamWScalars s,
    float grad_scale,
    float decay) {
    for (std::int64_t i = 0; i < count; ++i) {
        const float g = grad[i] * grad_scale;
        const float m = s.beta1 * exp_avg[i] + s.one_minus_beta1 * g;
        const float v = s.beta2 * exp_avg_sq[i] + s.one_minus_beta2 * (g * g);
        const float w = master[i];
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        master[i] = w - (s.step_size * m / (std::sqrt(v) * s.root_scale + s.epsilon) + decay * w);
    }
}

void update_block(const Block& block, const AdamWScalars& scalars, float grad_scale) {
    const ParameterBucket& bucket = *block.bucket;
    const std::int64_t count = block.end - block.begin;
    float* master = bucket.master.data<float>() + block.begin;
    update_rows(count, bucket.part_grad.data<float>() + block.begin,
                bucket.exp_avg.data<float>() + block.begin,
                bucket.exp_avg_sq.data<float>() + block.begin, master, scalars, grad_scale,
                block.decays ? scalars.decay : 0.0f);
    if (bucket.part_value.dtype() == DType::kBFloat16) {
        narrow(master, bucket.part_value.data<bfloat16>() + block.begin, count);
    }
}

}  // namespace

void adamw_step(const ParameterBuckets& buckets, const AdamWScalars& scalars, float grad_scale) {
    std::vector<Block> blocks;
    for (const ParameterBucket& bucket : buckets.list()) {
        for (const ParameterChunk& chunk : bucket.chunks) {
            if (!chunk.has(scalars.wanted)) continue;
            const std::int64_t chunk_end = chunk.begin + chunk.count;
            for (std::int64_t begin = chunk.begin; begin < chunk_end; begin += kBlock) {
                blocks.push_back(
                    {&bucket, begin, std::min(begin + kBlock, chunk_end), chunk.decays()});
            }
        }
    }
    const auto num_blocks = static_cast<std::int64_t>(blocks.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < num_blocks; ++i) update_block(blocks[i], scalars, grad_scale);
}

}  // namespace evenkeel::cpu
