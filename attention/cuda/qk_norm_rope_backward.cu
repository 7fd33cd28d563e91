// QK-norm and RoPE backward: dx of q and k in one launch, then the gradients of the gains in a
// second, small one.
//
// Tiles: as forward (qk_norm_rope_forward.cu), with 64 tokens a CTA on every GPU. A lane sums
// its 16 channels' gain gradients in fp32 over its 16 tokens, the CTA adds its four warps in order
// and writes one partial sum for each head; the second kernel adds those in double, always in the
// same tree. So the bits of dgain depend on the shape only.
//
// Bytes: dy and x are read and dx written once in whole 32-byte sectors, rstd read once, the table
// as forward; partial sums written and read once. With B T = 16384, H = 32, K = 8, D = R = 128:
//   dy, x, dx 3 x 16384 x 40 x 128 x 2 = 503.3 MB; rstd 2.6 MB; table at most 8.4 MB; partial sums
//   2 x 16384 / 64 x 40 x 128 x 4 = 10.5 MB: 524.8 MB. 13 flops a channel, 1.1 GFLOP: no limit.
//   Floor: A100 (2.04 TB/s) 257 us, H200 (4.8 TB/s) 109 us.
// In fp32 dy, x and dx take twice that, 1006.6 MB: 1028.1 MB in all. Floor: A100 504 us, H200 214 us.
//
// Loads in flight, on paper: 128 registers let 4 CTAs, 16 warps, share an SM; each warp opens 2 rows
// of dy and of x a group, 4 KB, so up to 64 KB an SM, against 36 B/ns x 2/3 x 800 ns = 19 KB that an
// H200 needs. (Norms::kAll but for any layout: up to 168 registers, 3 CTAs.)
#include "attention/cuda/qk_norm_rope.cuh"
#include "attention/cuda/qk_norm_rope.h"
#include "attention/cuda/qk_norm_rope_launch.cuh"

namespace evenkeel::cuda {
namespace norm_rope {
namespace {

struct BackwardPart {
    Rows dy, x, dx;
    const float* gain = nullptr;
    int gain_head = 0;  // stride from head to head: D or 0
    const float* rstd = nullptr;
    const float* mean = nullptr;  // [B, T], with one statistic a token
    float* partial = nullptr;     // [chunks, N, D] sums for dgain; null: not wanted
    Heads heads;
};

struct BackwardParameters {
    Common common;
    BackwardPart part[2];
};

// Fixed, so that every GPU adds up gain gradients in the same order.
constexpr int kChunkTokens = 64;

template <typename T, int kDim, Layout kLayout, Norms kNorms>
__global__ void __launch_bounds__(kThreads,
                                  kLayout != Layout::kAny && kNorms == Norms::kAll ? 3 : 4)
    qk_norm_rope_backward_kernel(const BackwardParameters p) {
    using S = Shape<kDim>;
    const Common& common = p.common;
    const bool second = blockIdx.x >= common.first_blocks;
    const BackwardPart part = second ? p.part[1] : p.part[0];
    const Place<kDim, kLayout> place(common, part.heads,
                                     blockIdx.x - (second ? common.first_blocks : 0));
    const float* const gain_row =
        part.gain == nullptr ? nullptr : part.gain + place.head * part.gain_head;
    float gain[kHeld], sums[kHeld];
    load_gain(place.used ? gain_row : nullptr, common.gain_offset, place.channel, gain);
#pragma unroll
    for (int c = 0; c < kHeld; ++c) sums[c] = 0.0f;

    const T* dy = place.template first<const T>(part.dy);
    const T* x = place.template first<const T>(part.x);
    T* dx = place.template first<T>(part.dx);
    const float* rstd = part.rstd + (common.norm ? place.statistic(common, part.heads) : 0);
    const int apart = place.apart();
    const Turn<kDim, kLayout> turn(common, place);

    constexpr int kRows = kLayout == Layout::kAny ? 1 : 2;  // whose loads are open at a time
    int t = place.t;
    for (int done = 0; done < kChunkTokens; done += kWarps * kRows) {
        if (!__any_sync(kAllLanes, place.used && t < common.tokens)) break;
        Packed<T> packed_dy[kRows], packed_x[kRows];
        int angles[kRows];
        float factors[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const bool exists = place.used && t + i * kWarps < common.tokens;
            packed_dy[i] = load(dy + i * kWarps * part.dy.token, apart, exists);
            angles[i] = angles_of(common, place.b, t + i * kWarps, exists);
            if (angles[i] < 0) packed_dy[i] = not_a_number<T>();
            if (!common.norm) continue;
            packed_x[i] = load(x + i * kWarps * part.x.token, apart, exists);
            factors[i] = exists ? *rstd : 0.0f;
            rstd += kWarps *
                    (kNorms == Norms::kAll && common.token_statistic ? 1 : part.heads.count.value);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const bool exists = place.used && t + i * kWarps < common.tokens;
            float z[kHeld];  // the gradient turned back
            unpack<T>(packed_dy[i], z);
            if constexpr (kLayout == Layout::kAny) {
                rotate_any<-1>(common, place, angles[i], exists, z, [&](int channel) {
                    return to_float(dy[channel - place.channel[0]]);
                });
                __syncwarp();  // dx may be dy: no lane writes before all have read
            } else {
                rotate<-1>(common, turn, angles[i], exists, z);
            }
            if (common.norm) {
                float u[kHeld];
                unpack<T>(packed_x[i], u);
                float factor = factors[i];
                // What makes y of x but for gain and rotation, and the share of the radial part.
                float scale = factor, lambda = 1.0f;
                if constexpr (kNorms == Norms::kAll) {
                    if (common.centred) centre<T, kDim>(u, exists);
                    scale = factor *= common.restore;
                    if (common.lambda != nullptr) {
                        lambda = __ldg(common.lambda);
                        scale = factors[i] = power(factor, lambda);
                    }
                }
                float even = 0.0f, odd = 0.0f;
#pragma unroll
                for (int c = 0; c < kHeld; ++c) {
                    sums[c] += z[c] * (u[c] * scale);
                    u[c] *= factor;
                    z[c] *= gain[c];
                    (c % 2 == 0 ? even : odd) += z[c] * u[c];
                }
                float mean =
                    sum_over_group<S::kLanes>(even + odd) * common.inverse_divisor * lambda;
                if (kNorms == Norms::kAll && common.token_statistic && exists) {
                    mean = (second ? p.part[1] : p.part[0])
                               .mean[static_cast<std::int64_t>(place.b) * common.tokens + t +
                                     i * kWarps];
                }
                if (kNorms == Norms::kAll && common.centred) {
                    float shift = 0.0f;
#pragma unroll
                    for (int c = 0; c < kHeld; ++c) shift += z[c];
                    shift = sum_over_group<S::kLanes>(shift) * (1.0f / kDim);
#pragma unroll
                    for (int c = 0; c < kHeld; ++c) z[c] -= shift;
                }
                // With lambda 0 nothing may be taken off: it would change the sign of zeros.
                if (kNorms == Norms::kUsual || lambda != 0.0f) {
#pragma unroll
                    for (int c = 0; c < kHeld; ++c) z[c] = (z[c] - u[c] * mean) * factors[i];
                }
            }
            if (exists) store(dx, apart, z);
            dy += kWarps * part.dy.token;
            dx += kWarps * part.dx.token;
        }
        x += kWarps * kRows * part.x.token;
        t += kWarps * kRows;
    }
    if (part.partial == nullptr) return;

    // The sums of the four warps, in order; each thread ends with four channels.
    __shared__ float shared[kWarps][kHeld][kWarp];
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int c = 0; c < kHeld; ++c) shared[warp][c][lane] = sums[c];
    __syncthreads();
    if (!place.used) return;
    float total[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
        for (int c = 0; c < 4; ++c) total[c] += shared[w][warp * 4 + c][lane];
    }
    const int channel = (warp < 2 ? place.channel[0] : place.channel[1]) + warp % 2 * 4;
    *reinterpret_cast<float4*>(part.partial + static_cast<std::int64_t>(place.group) * kDim +
                               channel) = {total[0], total[1], total[2], total[3]};
}

// ---- dgain += sums over chunks, and over heads where they share a gain

struct GainPart {
    // [rows, width]: width = N D, or D with the heads among the rows.
    const float* partial = nullptr;
    float* dgain = nullptr;  // [width]
    std::uint32_t rows = 0, width = 0;
};

struct GainParameters {
    GainPart part[2];
    std::uint32_t first_blocks = 0;
};

constexpr int kSumChannels = 32;  // of a CTA: 8 lanes of 4
constexpr int kSlices = 64;       // of the rows
constexpr int kSumThreads = kSlices * kSumChannels / 4;

__global__ void __launch_bounds__(kSumThreads) qk_norm_rope_gain_kernel(const GainParameters p) {
    const bool second = blockIdx.x >= p.first_blocks;
    const GainPart part = second ? p.part[1] : p.part[0];
    const std::uint32_t block = blockIdx.x - (second ? p.first_blocks : 0);
    const int quad = static_cast<int>(threadIdx.x) % (kSumChannels / 4);
    const int slice = static_cast<int>(threadIdx.x) / (kSumChannels / 4);
    const float* from = part.partial + block * kSumChannels + quad * 4;
    double total[4] = {};
#pragma unroll 4
    for (std::uint32_t row = slice; row < part.rows; row += kSlices) {
        const float4 four =
            *reinterpret_cast<const float4*>(from + static_cast<std::int64_t>(row) * part.width);
        total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
    }
    __shared__ double shared[kSlices][kSumChannels];
#pragma unroll
    for (int c = 0; c < 4; ++c) shared[slice][quad * 4 + c] = total[c];
    // By halves: always the same tree.
    const int channel = static_cast<int>(threadIdx.x) % kSumChannels;
    const int first = static_cast<int>(threadIdx.x) / kSumChannels;
    for (int half = kSlices / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int s = first; s < half; s += kSumThreads / kSumChannels) {
            shared[s][channel] += shared[s + half][channel];
        }
    }
    if (first != 0) return;  // what is left was added by this warp itself
    float* to = part.dgain + block * kSumChannels + channel;
    *to = static_cast<float>(*to + shared[0][channel]);
}

}  // namespace
}  // namespace norm_rope

void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart> parts,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options) {
    using namespace norm_rope;
    constexpr const char* kOp = "qk_norm_rope_backward";
    BackwardParameters p;
    fill_common(kOp, parts[0].dy, kChunkTokens, rope, positions, options, p.common);
    if (p.common.centred) p.common.inverse_divisor *= 0.25f;  // u here is no longer halved
    const std::int64_t dim = parts[0].dy.size(3);
    GainParameters sums;
    Tensor partials[2];
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const QkNormRopeGradientPart& from = parts[i];
        BackwardPart& to = p.part[i];
        const std::int64_t heads = from.dy.size(2);
        to.dy = Rows(from.dy);
        to.x = Rows(from.x);
        to.dx = Rows(from.dx);
        to.heads = heads_of(kOp, p.common, from.dy);
        if (options.norm != QkNormKind::kNone) to.rstd = from.rstd.data<float>();
        if (options.token_statistic) to.mean = from.mean.data<float>();
        if (!from.gain.defined() || heads == 0) continue;
        const bool shared = from.gain.rank() == 1;
        to.gain = from.gain.data<float>();
        to.gain_head = shared ? 0 : static_cast<int>(dim);
        partials[i] = Tensor::uninitialized({to.heads.groups, dim}, DType::kFloat32, Device::kCuda);
        to.partial = partials[i].data<float>();
        GainPart& sum = sums.part[i];
        sum.partial = to.partial;
        sum.dgain = from.dgain.data<float>();
        sum.width = static_cast<std::uint32_t>(shared ? dim : heads * dim);
        sum.rows = shared ? to.heads.groups : to.heads.groups / static_cast<std::uint32_t>(heads);
    }
    dispatch(kOp, parts[0].dy, rope, p.common,
             [&]<typename T, int kDim, Layout kLayout, Norms kNorms>() {
                 p.common.first_blocks = blocks_of<kDim>(p.part[0].heads);
                 const std::uint32_t blocks =
                     p.common.first_blocks + blocks_of<kDim>(p.part[1].heads);
                 launch(kOp, qk_norm_rope_backward_kernel<T, kDim, kLayout, kNorms>,
                        {.grid = dim3(blocks), .block = dim3(kThreads)}, p);
             });
    sums.first_blocks = sums.part[0].width / kSumChannels;
    launch(kOp, qk_norm_rope_gain_kernel,
           {.grid = dim3(sums.first_blocks + sums.part[1].width / kSumChannels),
            .block = dim3(kSumThreads)},
           sums);
}

}  // namespace evenkeel::cuda
