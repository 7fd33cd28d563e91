// QK-norm and RoPE forward: one pass over the rows of q and k in one launch.
//
// Tiles: a CTA of 4 warps owns 2 to 8 neighbouring heads (32 lanes / lanes of a row) and 8 or 32
// tokens; its warps take turns at the tokens. The first CTAs work on the first part, the others on
// the second, so that all that tells the parts apart is the same for a whole CTA. See
// qk_norm_rope.cuh for the lanes of a row.
//
// Bytes: x is read and y written once in whole 32-byte sectors, rstd written once; a row of the
// table is read once by each group of heads, mostly from cache. With B T = 16384, H = 32, K = 8,
// D = R = 128:
//   x, y 2 x 16384 x 40 x 128 x 2 = 335.5 MB; rstd 16384 x 40 x 4 = 2.6 MB; table at most 16384 x
//   64 x 2 x 4 = 8.4 MB; gains 20 KB: 346.6 MB. About 7 flops a channel, 0.6 GFLOP: no limit.
//   Floor: A100 (2.04 TB/s) 170 us, H200 (4.8 TB/s) 72 us.
// In fp32 x and y take twice that, 671.1 MB: 682.1 MB in all. Floor: A100 334 us, H200 142 us.
//
// Loads in flight, on paper: 80 registers let 6 CTAs, 24 warps, share an SM; each warp opens 2 rows
// a group, 2 KB, so up to 48 KB an SM. (Norms::kAll with halves 90, in fp32 94: 5 CTAs.) An H200's SM
// draws 4.8 TB/s / 132 = 36 B/ns, half of it reads: at 800 ns from request to data 15 KB must be open,
// so a warp may spend two thirds of its time on other things.
#include "attention/cuda/qk_norm_rope.cuh"
#include "attention/cuda/qk_norm_rope.h"
#include "attention/cuda/qk_norm_rope_launch.cuh"

namespace evenkeel::cuda {
namespace norm_rope {
namespace {

struct ForwardPart {
    Rows x, y;
    const float* gain = nullptr;
    int gain_head = 0;  // stride from head to head: D or 0
    float* rstd = nullptr;
    Heads heads;
};

struct ForwardParameters {
    Common common;
    ForwardPart part[2];
};

// Beyond this range, or NaN, the squares may have over- or underflowed.
constexpr float kSmallRstd = 6e-20f;
constexpr float kLargeRstd = 1e15f;

// 1 / root of each group's row in double, as the CPU does it: 0 where the root is.
template <int kDim>
__device__ __forceinline__ float careful_rstd(const float (&x)[kHeld], const Common& common) {
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum += static_cast<double>(x[i]) * x[i];
    sum = sum_over_group<Shape<kDim>::kLanes>(sum);
    const double root = sqrt(sum * common.inverse_divisor + common.eps);
    if (root == 0.0) return 0.0f;
    const double inverse = 1.0 / root;
    return inverse > 1.5e38 ? 1.5e38f : static_cast<float>(inverse);
}

// All lanes of the warp call this together.
template <int kDim>
__device__ __forceinline__ float find_rstd(const float (&x)[kHeld],
                                           const Common& common,
                                           bool used) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; i += 2) even += x[i] * x[i], odd += x[i + 1] * x[i + 1];
    const float sum = sum_over_group<Shape<kDim>::kLanes>(even + odd);
    const float rstd = rsqrtf(sum * common.inverse_divisor + common.eps);
    const bool unusual = used && !(rstd >= kSmallRstd && rstd <= kLargeRstd);
    if (!__any_sync(kAllLanes, unusual)) [[likely]]
        return rstd;
    const float careful = careful_rstd<kDim>(x, common);
    return unusual ? careful : rstd;
}

template <typename T, int kDim, Layout kLayout, Norms kNorms>
__global__ void __launch_bounds__(
    kThreads, sizeof(T) == 4 || (kLayout == Layout::kHalfSplit && kNorms == Norms::kAll) ? 5 : 6)
    qk_norm_rope_forward_kernel(const ForwardParameters p) {
    const Common& common = p.common;
    const bool second = blockIdx.x >= common.first_blocks;
    const ForwardPart part = second ? p.part[1] : p.part[0];
    const Place<kDim, kLayout> place(common, part.heads,
                                     blockIdx.x - (second ? common.first_blocks : 0));
    const float* const gain_row =
        part.gain == nullptr ? nullptr : part.gain + place.head * part.gain_head;

    float gain[kHeld];
    load_gain(place.used ? gain_row : nullptr, common.gain_offset, place.channel, gain);

    const T* x = place.template first<const T>(part.x);
    T* y = place.template first<T>(part.y);
    float* rstd = part.rstd + (common.norm ? place.statistic(common, part.heads) : 0);
    const int apart = place.apart();
    const Turn<kDim, kLayout> turn(common, place);

    constexpr int kRows = kLayout == Layout::kAny ? 1 : 2;  // whose loads are open at a time
    int t = place.t;
    for (int done = 0; done < common.chunk_tokens; done += kWarps * kRows) {
        if (!__any_sync(kAllLanes, place.used && t < common.tokens)) return;
        Packed<T> packed[kRows];
        int angles[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const bool exists = place.used && t + i * kWarps < common.tokens;
            packed[i] = load(x + i * kWarps * part.x.token, apart, exists);
            angles[i] = angles_of(common, place.b, t + i * kWarps, exists);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const bool exists = place.used && t + i * kWarps < common.tokens;
            float v[kHeld];
            unpack<T>(packed[i], v);
            float factor = 1.0f;
            Mean<T> shift = 0;
            if constexpr (kNorms == Norms::kAll) {
                if (common.centred) shift = centre<T, kDim>(v, exists);
            }
            if (kNorms == Norms::kAll && common.token_statistic) {
                factor = exists ? *rstd : 0.0f;
                rstd += kWarps;
            } else if (common.norm) {
                factor = find_rstd<kDim>(v, common, exists);
                if (place.lane == 0 && exists) *rstd = factor;
                rstd += kWarps * part.heads.count.value;
            }
            if constexpr (kNorms == Norms::kAll) {
                factor *= common.restore;
                if (common.lambda != nullptr) factor = power(factor, __ldg(common.lambda));
            } else {
                unpack<T>(packed[i], v);  // anew, so that fewer registers live through the sum
            }
            if (angles[i] < 0) factor = NAN;
#pragma unroll
            for (int c = 0; c < kHeld; ++c) v[c] = v[c] * factor * gain[c];
            if constexpr (kLayout == Layout::kAny) {
                rotate_any<1>(common, place, angles[i], exists, v, [&](int channel) {
                    const float g =
                        gain_row == nullptr ? 1.0f : __ldg(gain_row + channel) + common.gain_offset;
                    float value = to_float(x[channel - place.channel[0]]);
                    if (common.centred) value = half_off_mean(value, shift);
                    return value * factor * g;
                });
                __syncwarp();  // y may be x: no lane writes before all have read
            } else {
                rotate<1>(common, turn, angles[i], exists, v);
            }
            if (exists) store(y, apart, v);
            x += kWarps * part.x.token;
            y += kWarps * part.y.token;
        }
        t += kWarps * kRows;
    }
}

}  // namespace
}  // namespace norm_rope

void qk_norm_rope_forward(std::span<const QkNormRopePart> parts,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options) {
    using namespace norm_rope;
    constexpr const char* kOp = "qk_norm_rope_forward";
    ForwardParameters p;
    std::int64_t rows = 0;
    for (const QkNormRopePart& part : parts) rows += part.x.numel() / part.x.size(3);
    // Long walks read the gains less often; short ones fill the GPU when there are few rows.
    fill_common(kOp, parts[0].x, rows >= 1 << 16 ? 32 : 8, rope, positions, options, p.common);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const QkNormRopePart& from = parts[i];
        ForwardPart& to = p.part[i];
        to.x = Rows(from.x);
        to.y = Rows(from.y);
        to.heads = heads_of(kOp, p.common, from.x);
        if (from.gain.defined()) {
            to.gain = from.gain.data<float>();
            to.gain_head = from.gain.rank() == 2 ? static_cast<int>(from.x.size(3)) : 0;
        }
        if (options.norm != QkNormKind::kNone) to.rstd = from.rstd.data<float>();
    }
    dispatch(
        kOp, parts[0].x, rope, p.common, [&]<typename T, int kDim, Layout kLayout, Norms kNorms>() {
            p.common.first_blocks = blocks_of<kDim>(p.part[0].heads);
            const std::uint32_t blocks = p.common.first_blocks + blocks_of<kDim>(p.part[1].heads);
            launch(kOp, qk_norm_rope_forward_kernel<T, kDim, kLayout, kNorms>,
                   {.grid = dim3(blocks), .block = dim3(kThreads)}, p);
        });
}

}  // namespace evenkeel::cuda
