// The host's side of both directions: parameters that all rows share, which kernel takes a call.
#pragma once

#include "attention/cuda/qk_norm_rope.cuh"
#include "framework/cuda.h"
#include "framework/dispatch.h"

namespace evenkeel::cuda::norm_rope {

inline void fill_common(const char* op,
                        const Tensor& x,
                        std::int64_t chunk_tokens,
                        const RopeTable& rope,
                        const Tensor& positions,
                        const QkNormRopeOptions& options,
                        Common& common) {
    const std::int64_t T = x.size(1), chunks = (T + chunk_tokens - 1) / chunk_tokens;
    EVENKEEL_CHECK(T <= INT32_MAX - chunk_tokens, op, "tokens: got ", T, ", want fewer than 2^31");
    EVENKEEL_CHECK(rope.count <= INT32_MAX, op, "positions of the table: got ", rope.count,
                   ", want fewer than 2^31");
    common.tokens = static_cast<int>(T);
    common.chunk_tokens = static_cast<int>(chunk_tokens);
    common.chunks = Divisor(static_cast<std::uint32_t>(chunks));
    common.rotary_dim = static_cast<int>(rope.rotary_dim);
    common.interleaved = rope.layout == RopeLayout::kInterleaved;
    common.norm = options.norm != QkNormKind::kNone;
    common.centred = options.norm == QkNormKind::kLayerNorm;
    common.token_statistic = options.token_statistic;
    common.inverse_divisor =
        options.norm == QkNormKind::kL2 ? 1.0f : 1.0f / static_cast<float>(x.size(3));
    if (common.centred) {
        common.restore = 2.0f;
        common.inverse_divisor *= 4.0f;
    }
    common.eps = static_cast<float>(options.eps);
    common.gain_offset = static_cast<float>(options.gain_offset);
    if (options.lambda.defined()) common.lambda = options.lambda.data<float>();
    if (rope.rotary_dim == 0) return;
    common.cos = rope.cos.data<float>();
    common.sin = rope.sin.data<float>();
    common.count = rope.count;
    if (!positions.defined()) return;
    common.positions = positions.data<std::int32_t>();
    common.positions_batch = positions.stride(0);
    common.positions_token = positions.stride(1);
    common.first = rope.first;
}

inline Heads heads_of(const char* op, const Common& common, const Tensor& x) {
    const std::int64_t count = x.size(2), groups = x.size(0) * common.chunks.value * count;
    EVENKEEL_CHECK(groups <= INT32_MAX, op, "sequences times heads: got ", x.size(0) * count,
                   ", want fewer than ", (INT32_MAX + std::int64_t{1}) / common.chunks.value);
    Heads heads;
    if (count == 0) return heads;
    heads.count = Divisor(static_cast<std::uint32_t>(count));
    heads.groups = static_cast<std::uint32_t>(groups);
    return heads;
}

template <int kDim>
std::uint32_t blocks_of(const Heads& heads) {
    constexpr std::uint32_t kGroups = Shape<kDim>::kGroups;
    return (heads.groups + kGroups - 1) / kGroups;
}

// Calls f.operator()<storage type, head width, layout, norms>().
template <typename F>
void dispatch(const char* op, const Tensor& x, const RopeTable& rope, const Common& common, F&& f) {
    // Four angles at a time: rows of the table must begin at multiples of 16 bytes.
    const auto aligned = [](const Tensor& table) {
        return reinterpret_cast<std::uintptr_t>(table.raw()) % 16 == 0;
    };
    Layout layout =
        rope.layout == RopeLayout::kInterleaved ? Layout::kInterleaved : Layout::kHalfSplit;
    const std::int64_t multiple = layout == Layout::kInterleaved ? kChunk : kHeld;
    if (rope.rotary_dim > 0 &&
        (rope.rotary_dim % multiple != 0 || !aligned(rope.cos) || !aligned(rope.sin))) {
        layout = Layout::kAny;
    }
    // One kernel of each width for fp32, which is for debugging and for comparing: that of any layout.
    const bool fp32 = x.dtype() == DType::kFloat32;
    if (fp32) layout = Layout::kAny;
    const auto for_dim = [&]<int kDim>() {
        const auto for_norms = [&]<Layout kLayout, Norms kNorms>() {
            if constexpr (kLayout == Layout::kAny) {
                if (fp32) return f.template operator()<float, kDim, kLayout, kNorms>();
            }
            if (x.dtype() == DType::kBFloat16) {
                return f.template operator()<__nv_bfloat16, kDim, kLayout, kNorms>();
            }
            f.template operator()<__half, kDim, kLayout, kNorms>();
        };
        const auto for_layout = [&]<Layout kLayout>() {
            // The kernels of any layout have registers to spare.
            if constexpr (kLayout != Layout::kAny) {
                if (!common.centred && !common.token_statistic && common.lambda == nullptr) {
                    return for_norms.template operator()<kLayout, Norms::kUsual>();
                }
            }
            for_norms.template operator()<kLayout, Norms::kAll>();
        };
        switch (layout) {
            case Layout::kHalfSplit:
                return for_layout.template operator()<Layout::kHalfSplit>();
            case Layout::kInterleaved:
                return for_layout.template operator()<Layout::kInterleaved>();
            case Layout::kAny:
                return for_layout.template operator()<Layout::kAny>();
        }
    };
    dispatch_value<64, 96, 128, 256>(x.size(3), op, "head width", for_dim);
}

}  // namespace evenkeel::cuda::norm_rope
