// Splits flash attention into calls of the kernels and shares them out among threads. What a call computes
// depends on the problem only, never on the thread that makes it or on how many there are.
#include "attention/cpu/flash_attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "attention/flash_attention.h"
#include "framework/thread_errors.h"

namespace evenkeel {
namespace {

// Runs call(0) .. call(count - 1) on all threads, each started after every earlier one: the order on which
// the backward kernel's turns rely, and which schedule(dynamic) does not promise.
template <typename Call>
void for_each_in_order(std::int64_t count, std::int64_t scratch_words, Call&& call) {
    if (count == 0) return;
    std::atomic<std::int64_t> next{0};
    ThreadErrors errors;  // a thread without memory leaves all calls to the others
#pragma omp parallel
    errors.keep([&] {
        const Buffer scratch(static_cast<std::size_t>(scratch_words) * sizeof(float), Device::kCpu);
        auto* words = reinterpret_cast<float*>(scratch.data());
        for (std::int64_t i = next++; i < count; i = next++) call(i, words);
    });
    errors.rethrow();
}

std::int64_t blocks(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

FlashOperand operand(const Tensor& x) { return {x.raw(), x.stride(0), x.stride(1), x.stride(2)}; }

// Which keys each query sees: every mask is an interval whose ends never decrease.
struct VisibleKeys {
    Tensor first, last;  // [T] int32
    std::int64_t rows_that_see = 0;

    std::int64_t count(std::int64_t t) const {
        return std::max(0, last.data<std::int32_t>()[t] - first.data<std::int32_t>()[t]);
    }

    VisibleKeys(const AttentionMask& mask, std::int64_t queries, std::int64_t keys)
        : first(Tensor::uninitialized({queries}, DType::kInt32)),
          last(Tensor::uninitialized({queries}, DType::kInt32)) {
        auto* begin = first.data<std::int32_t>();
        auto* end = last.data<std::int32_t>();
        std::size_t document = 0;
        const std::int64_t window = std::min(mask.window, queries + keys);  // further is no limit
        for (std::int64_t t = 0; t < queries; ++t) {
            const std::int64_t position = t + keys - queries;
            std::int64_t from = 0, to = keys;
            if (mask.causal) to = std::min(to, position + 1);
            if (window > 0) {
                from = std::max(from, position - window + 1);
                to = std::min(to, position + window);
            }
            if (!mask.cu_seqlens.empty()) {
                while (mask.cu_seqlens[document + 1] <= t) ++document;
                from = std::max<std::int64_t>(from, mask.cu_seqlens[document]);
                to = std::min<std::int64_t>(to, mask.cu_seqlens[document + 1]);
            }
            begin[t] = static_cast<std::int32_t>(std::min(from, keys));
            end[t] = static_cast<std::int32_t>(std::max<std::int64_t>(to, 0));
            if (begin[t] < end[t]) ++rows_that_see;
        }
    }
};

FlashProblem make_problem(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const Tensor& out,
                          const Tensor& lse,
                          const AttentionOptions& options,
                          const VisibleKeys& visible) {
    FlashProblem p{};
    p.batch = q.size(0), p.queries = q.size(1), p.keys = k.size(1);
    p.heads = q.size(2), p.kv_heads = k.size(2), p.group = p.heads / p.kv_heads;
    p.head_dim = q.size(3);
    p.bf16 = q.dtype() == DType::kBFloat16;
    p.scale = options.softmax_scale > 0.0 ? options.softmax_scale
                                          : 1.0 / std::sqrt(static_cast<double>(p.head_dim));
    p.softcap = options.softcap;
    if (options.sink.defined()) p.sink = options.sink.data<float>();
    p.first = visible.first.data<std::int32_t>();
    p.last = visible.last.data<std::int32_t>();
    p.q = operand(q), p.k = operand(k), p.v = operand(v), p.out = operand(out);
    p.lse = lse.data<float>();
    return p;
}

Tensor workspace(std::int64_t words) { return Tensor::uninitialized({words}, DType::kFloat32); }

// Partial results of forward's telemetry.
struct Telemetry {
    std::int64_t row_blocks, rows_that_see, rows_with_a_choice = 0;
    Tensor max_dot, share_unit;
    std::vector<FlashSums> sums;

    Telemetry(FlashProblem& p, const VisibleKeys& visible, std::int64_t blocks_of_rows)
        : row_blocks(blocks_of_rows),
          rows_that_see(visible.rows_that_see),
          max_dot(workspace(p.batch * p.heads * row_blocks)),
          share_unit(workspace(p.queries)),
          sums(static_cast<std::size_t>(p.batch * p.heads * row_blocks)) {
        for (std::int64_t t = 0; t < p.queries; ++t) {
            const std::int64_t count = visible.count(t), keys = count + (p.sink ? 1 : 0);
            const bool choice = count > 0 && keys > 1;
            if (choice) ++rows_with_a_choice;
            share_unit.data<float>()[t] =
                choice ? static_cast<float>(1.0 / std::log(static_cast<double>(keys))) : 0.0f;
        }
        p.max_dot = max_dot.data<float>();
        p.share_unit = share_unit.data<float>();
        p.sums = sums.data();
    }

    // Per-head results from those of the blocks, in a fixed order.
    void reduce(const FlashProblem& p, const AttentionStats& stats) const {
        for (std::int64_t h = 0; h < p.heads; ++h) {
            double highest = -std::numeric_limits<double>::infinity();
            FlashSums total{};
            for (std::int64_t b = 0; b < p.batch; ++b) {
                const std::int64_t kv = b * p.kv_heads + h / p.group;
                for (std::int64_t block = 0; block < row_blocks; ++block) {
                    const std::int64_t at = (kv * row_blocks + block) * p.group + h % p.group;
                    // NaN is kept.
                    if (!(p.max_dot[at] <= highest) && !std::isnan(highest))
                        highest = p.max_dot[at];
                    total.entropy += p.sums[at].entropy;
                    total.entropy_share += p.sums[at].entropy_share;
                    total.saturated += p.sums[at].saturated;
                }
            }
            const auto put = [h](const Tensor& to, double value) {
                to.data<float>()[h] = static_cast<float>(value);
            };
            const auto mean = [&p](double sum, std::int64_t rows) {
                return rows > 0 && p.batch > 0 ? sum / static_cast<double>(p.batch * rows) : 0.0;
            };
            const double logit = p.scale * highest;
            const bool capped =
                p.softcap > 0.0 && highest != -std::numeric_limits<double>::infinity();
            put(stats.max_logit, capped ? p.softcap * std::tanh(logit / p.softcap) : logit);
            put(stats.max_logit_uncapped, logit);
            put(stats.entropy, mean(total.entropy, rows_that_see));
            put(stats.entropy_share, mean(total.entropy_share, rows_with_a_choice));
            put(stats.saturation, mean(total.saturated, rows_with_a_choice));
        }
    }
};

void pack(const FlashKernels& kernels, const FlashProblem& p, const FlashSizes& sizes) {
    const std::int64_t pack_blocks = blocks(p.keys, sizes.pack_block);
    for_each_in_order(p.batch * p.kv_heads * pack_blocks, 0, [&](std::int64_t i, float*) {
        kernels.pack(p, i / pack_blocks, i % pack_blocks);
    });
}

// An lse of size n is off by n 2^-24, so probabilities by n/2 units of the last place in fp32: to find the
// sums anew costs a fifth of backward. Logits of variance 1, as QK-norm gives them at first, have an lse of
// ln(keys) + 1/2, which stays below 12 up to a hundred thousand keys. In bf16 storage even 1024 costs no more
// than an eighth of a rounding.
constexpr float kCoarseLseForFp32 = 12.0f;
constexpr float kCoarseLseForBf16 = 1024.0f;

bool any_beyond(const Tensor& lse, float limit) {
    const float* values = lse.data<float>();
    return std::any_of(values, values + lse.numel(),
                       [limit](float x) { return std::abs(x) > limit && std::isfinite(x); });
}

// In the order of blocks.
void add_dsink(const FlashProblem& p, std::int64_t row_blocks, const Tensor& dsink) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
        double sum = 0.0;
        for (std::int64_t b = 0; b < p.batch; ++b) {
            const std::int64_t kv = b * p.kv_heads + h / p.group;
            for (std::int64_t block = 0; block < row_blocks; ++block)
                sum += p.dsink[(kv * row_blocks + block) * p.group + h % p.group];
        }
        dsink.data<float>()[h] += static_cast<float>(sum);
    }
}

}  // namespace

void cpu::flash_attention_forward(const Tensor& q,
                                  const Tensor& k,
                                  const Tensor& v,
                                  const AttentionOptions& options,
                                  const Tensor& out,
                                  const Tensor& lse,
                                  AttentionStats* stats) {
    const VisibleKeys visible(options.mask, q.size(1), k.size(1));
    FlashProblem p = make_problem(q, k, v, out, lse, options, visible);
    const FlashKernels& kernels = flash_kernels(p.bf16);
    const FlashSizes sizes = kernels.sizes(p);
    const std::int64_t kvs = p.batch * p.kv_heads;
    const std::int64_t row_blocks = blocks(p.queries * p.group, sizes.block_rows);

    const Tensor packed_keys = workspace(kvs * sizes.packed_keys);
    const Tensor packed_values = workspace(kvs * sizes.packed_values);
    p.packed_keys = packed_keys.data<float>();
    p.packed_values = packed_values.data<float>();
    std::optional<Telemetry> telemetry;
    if (stats) telemetry.emplace(p, visible, row_blocks);

    pack(kernels, p, sizes);
    // Last rows first: under a causal mask they see most, and small calls at the end even out.
    for_each_in_order(kvs * row_blocks, sizes.forward_scratch, [&](std::int64_t i, float* scratch) {
        kernels.forward(p, i % kvs, row_blocks - 1 - i / kvs, scratch);
    });
    if (telemetry) telemetry->reduce(p, *stats);
}

FlashAttentionScratch cpu::flash_attention_scratch(const FlashAttentionShape& shape) {
    FlashProblem p{};
    p.batch = shape.batch, p.queries = p.keys = shape.tokens, p.head_dim = shape.head_dim;
    p.heads = shape.heads, p.kv_heads = shape.kv_heads, p.group = shape.heads / shape.kv_heads;
    p.bf16 = shape.dtype == DType::kBFloat16;
    const FlashSizes sizes = flash_kernels(p.bf16).sizes(p);
    const std::int64_t kvs = p.batch * p.kv_heads, rows = p.queries * p.group;
    const std::int64_t partials =
        shape.telemetry ? kvs * blocks(rows, sizes.block_rows) * p.group + p.queries : 0;
    const std::int64_t visible = 2 * p.queries, threads = omp_get_max_threads();
    const std::int64_t forward = visible + kvs * (sizes.packed_keys + sizes.packed_values) +
                                 partials + threads * sizes.forward_scratch;
    const std::int64_t backward =
        visible +
        kvs * rows * (static_cast<std::int64_t>(sizeof(FlashRow) / sizeof(float)) + p.head_dim) +
        threads * std::max(sizes.prepare_scratch, sizes.backward_scratch);
    return {static_cast<std::size_t>(forward) * sizeof(float),
            static_cast<std::size_t>(backward) * sizeof(float)};
}

void cpu::flash_attention_backward(const Tensor& q,
                                   const Tensor& k,
                                   const Tensor& v,
                                   const Tensor& out,
                                   const Tensor& lse,
                                   const Tensor& dout,
                                   const AttentionOptions& options,
                                   const Tensor& dq,
                                   const Tensor& dk,
                                   const Tensor& dv,
                                   const Tensor& dsink) {
    const VisibleKeys visible(options.mask, q.size(1), k.size(1));
    FlashProblem p = make_problem(q, k, v, out, lse, options, visible);
    p.dout = operand(dout), p.dq = operand(dq), p.dk = operand(dk), p.dv = operand(dv);
    const FlashKernels& kernels = flash_kernels(p.bf16);
    const FlashSizes sizes = kernels.sizes(p);
    const std::int64_t kvs = p.batch * p.kv_heads, rows = p.queries * p.group;
    const std::int64_t row_blocks = blocks(rows, sizes.block_rows);
    const std::int64_t key_blocks = blocks(p.keys, sizes.backward_keys);

    const Tensor row_data = workspace(kvs * rows * (sizeof(FlashRow) / sizeof(float)));
    const Tensor dq_sum = workspace(kvs * rows * p.head_dim);
    std::vector<int> turn(static_cast<std::size_t>(kvs * row_blocks), 0);
    p.rows = reinterpret_cast<FlashRow*>(row_data.raw());
    p.dq_sum = dq_sum.data<float>();
    p.turn = turn.data();
    std::vector<double> dsink_parts;
    if (dsink.defined()) {
        dsink_parts.resize(static_cast<std::size_t>(kvs * row_blocks * p.group), 0.0);
        p.dsink = dsink_parts.data();
    }
    Tensor packed_keys, packed_values;
    p.coarse_lse = p.bf16 ? kCoarseLseForBf16 : kCoarseLseForFp32;
    if (any_beyond(lse, p.coarse_lse)) {
        packed_keys = workspace(kvs * sizes.packed_keys);
        p.packed_keys = packed_keys.data<float>();
        if (p.bf16) {
            packed_values = workspace(kvs * sizes.packed_values);
            p.packed_values = packed_values.data<float>();
        }
        pack(kernels, p, sizes);
    }

    for_each_in_order(kvs * row_blocks, sizes.prepare_scratch, [&](std::int64_t i, float* scratch) {
        kernels.prepare_rows(p, i / row_blocks, i % row_blocks, scratch);
    });
    if (dsink.defined()) add_dsink(p, row_blocks, dsink);
    // Neighbouring calls work on different heads, so that none waits for another while there are heads
    // enough; and the first keys, which most rows see, come first.
    for_each_in_order(
        kvs * key_blocks, sizes.backward_scratch,
        [&](std::int64_t i, float* scratch) { kernels.backward(p, i % kvs, i / kvs, scratch); });
    for_each_in_order(kvs * row_blocks, 0, [&](std::int64_t i, float*) {
        kernels.store_dq(p, i / row_blocks, i % row_blocks);
    });
}

}  // namespace evenkeel
