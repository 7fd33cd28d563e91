#include "attention/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace evenkeel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t size_of_product(std::initializer_list<std::int64_t> sizes) {
    std::int64_t n = 1;
    for (std::int64_t size : sizes) n *= size;
    return static_cast<std::size_t>(n);
}

double gain_at(const ReferenceQkNormRope& o, std::int64_t n, std::int64_t d, std::int64_t D) {
    if (o.gain.empty()) return 1.0;
    const bool shared = o.gain.size() == static_cast<std::size_t>(D);
    return o.gain[static_cast<std::size_t>(shared ? d : n * D + d)] + o.gain_offset;
}

// What a row u = (x - mean) rstd is normalised by.
struct Statistic {
    double mean, rstd;
    double divisor;  // of the sum of squares
};

Statistic statistic_of(const double* x, std::int64_t length, const ReferenceQkNormRope& o) {
    const auto count = static_cast<double>(length);
    Statistic s{0.0, 0.0, o.kind == QkNormKind::kL2 ? 1.0 : count};
    if (o.kind == QkNormKind::kLayerNorm) {
        for (std::int64_t i = 0; i < length; ++i) s.mean += x[i] / count;
    }
    double sum = 0.0;
    for (std::int64_t i = 0; i < length; ++i) sum += (x[i] - s.mean) * (x[i] - s.mean);
    s.rstd = 1.0 / std::sqrt(sum / s.divisor + o.eps);
    return s;
}

// Of a token with N heads of D channels, the channels that share a statistic.
std::int64_t row_length(std::int64_t N, std::int64_t D, const ReferenceQkNormRope& o) {
    return o.full_width ? N * D : D;
}

// Turns each pair by its angle; direction -1 is the transpose.
void rotate(double* x, std::int64_t t, const ReferenceQkNormRope& o, double direction) {
    const auto pairs = static_cast<std::int64_t>(o.frequencies.size());
    const std::int64_t position =
        o.positions.empty() ? t : o.positions[static_cast<std::size_t>(t)];
    for (std::int64_t p = 0; p < pairs; ++p) {
        const double angle =
            static_cast<double>(position) * o.frequencies[static_cast<std::size_t>(p)];
        const double c = o.magnitude * std::cos(angle),
                     s = direction * o.magnitude * std::sin(angle);
        const bool half_split = o.layout == RopeLayout::kHalfSplit;
        double& first = x[half_split ? p : 2 * p];
        double& second = x[half_split ? p + pairs : 2 * p + 1];
        const double a = first, b = second;
        first = a * c - b * s;
        second = b * c + a * s;
    }
}

// Probabilities of one query row, its logits' maximum and their log-sum-exp.
struct Row {
    std::vector<double> p;
    std::vector<double> slope;  // of softcap: d(capped logit) / d(logit)
    double max = -kInfinity, max_uncapped = -kInfinity;
    double lse = -kInfinity;
    double sink_p = 0.0;    // the sink's share
    std::int64_t keys = 0;  // in sight, the sink not counted
};

struct Operands {
    const ReferenceShape& shape;
    const std::vector<double>& q;  // after norm and rotation
    const std::vector<double>& k;
    const AttentionOptions& options;
    std::optional<std::vector<double>> sink;  // [H]

    Operands(const ReferenceShape& s,
             const std::vector<double>& turned_q,
             const std::vector<double>& turned_k,
             const AttentionOptions& o)
        : shape(s), q(turned_q), k(turned_k), options(o) {
        if (!options.sink.defined()) return;
        const Tensor on_cpu = options.sink.to(Device::kCpu);
        const float* values = on_cpu.data<float>();
        sink.emplace(values, values + shape.H);
    }

    double scale() const {
        return options.softmax_scale > 0.0 ? options.softmax_scale
                                           : 1.0 / std::sqrt(static_cast<double>(shape.D));
    }
    std::size_t query(std::int64_t b, std::int64_t t, std::int64_t h) const {
        return static_cast<std::size_t>(((b * shape.T + t) * shape.H + h) * shape.D);
    }
    std::size_t key(std::int64_t b, std::int64_t j, std::int64_t h) const {
        return static_cast<std::size_t>(((b * shape.S + j) * shape.K + h / (shape.H / shape.K)) *
                                        shape.D);
    }

    Row row(std::int64_t b, std::int64_t t, std::int64_t h) const {
        Row r;
        r.p.assign(static_cast<std::size_t>(shape.S), -kInfinity);
        r.slope.assign(r.p.size(), 1.0);
        const double cap = options.softcap;
        for (std::int64_t j = 0; j < shape.S; ++j) {
            if (!reference_sees(options.mask, shape.T, shape.S, t, j)) continue;
            double dot = 0.0;
            for (std::int64_t d = 0; d < shape.D; ++d)
                dot += q[query(b, t, h) + d] * k[key(b, j, h) + d];
            const double logit = scale() * dot;
            r.p[j] = logit;
            if (cap > 0.0) {
                r.p[j] = cap * std::tanh(logit / cap);
                r.slope[j] = 1.0 / (std::cosh(logit / cap) * std::cosh(logit / cap));
            }
            r.max = std::isnan(r.max) || r.p[j] <= r.max ? r.max : r.p[j];
            r.max_uncapped =
                std::isnan(r.max_uncapped) || logit <= r.max_uncapped ? r.max_uncapped : logit;
            ++r.keys;
        }
        if (sink) r.lse = (*sink)[h];
        if (r.keys == 0) {
            std::fill(r.p.begin(), r.p.end(), 0.0);
            return r;
        }
        const double shift = sink ? std::max(r.max, (*sink)[h]) : r.max;
        double sum = sink ? std::exp((*sink)[h] - shift) : 0.0;
        for (double x : r.p) sum += std::exp(x - shift);
        r.lse = shift + std::log(sum);
        for (double& x : r.p) x = std::exp(x - shift) / sum;
        if (sink) r.sink_p = std::exp((*sink)[h] - shift) / sum;
        return r;
    }
};

}  // namespace

std::vector<double> reference_qk_norm_rope(const std::vector<double>& x,
                                           std::int64_t B,
                                           std::int64_t T,
                                           std::int64_t N,
                                           std::int64_t D,
                                           const ReferenceQkNormRope& o) {
    std::vector<double> y = x;
    const std::int64_t length = row_length(N, D, o);
    for (std::int64_t token = 0; token < B * T; ++token) {
        double* heads = y.data() + token * N * D;
        for (std::int64_t at = 0; o.kind != QkNormKind::kNone && at < N * D; at += length) {
            const Statistic s = statistic_of(heads + at, length, o);
            for (std::int64_t i = at; i < at + length; ++i) {
                heads[i] = (heads[i] - s.mean) * s.rstd * gain_at(o, i / D, i % D, D);
            }
        }
        for (std::int64_t n = 0; n < N; ++n) rotate(heads + n * D, token % T, o, 1.0);
    }
    return y;
}

ReferenceQkNormRopeGradients reference_qk_norm_rope_backward(const std::vector<double>& dy,
                                                             const std::vector<double>& x,
                                                             std::int64_t B,
                                                             std::int64_t T,
                                                             std::int64_t N,
                                                             std::int64_t D,
                                                             const ReferenceQkNormRope& o) {
    ReferenceQkNormRopeGradients g{dy, std::vector<double>(o.gain.size(), 0.0)};
    const bool shared = o.gain.size() == static_cast<std::size_t>(D);
    const std::int64_t length = row_length(N, D, o);
    for (std::int64_t token = 0; token < B * T; ++token) {
        const double* heads = x.data() + token * N * D;
        double* z = g.dx.data() + token * N * D;  // gradient of the rows before rotation, then of x
        for (std::int64_t n = 0; n < N; ++n) rotate(z + n * D, token % T, o, -1.0);
        for (std::int64_t at = 0; o.kind != QkNormKind::kNone && at < N * D; at += length) {
            const Statistic s = statistic_of(heads + at, length, o);
            double mean = 0.0, radial = 0.0;  // of gain z, and of gain z u
            for (std::int64_t i = at; i < at + length; ++i) {
                const double u = (heads[i] - s.mean) * s.rstd;
                if (!g.dgain.empty())
                    g.dgain[static_cast<std::size_t>(shared ? i % D : i)] += z[i] * u;
                z[i] *= gain_at(o, i / D, i % D, D);
                if (o.kind == QkNormKind::kLayerNorm) mean += z[i] / static_cast<double>(length);
                radial += z[i] * u / s.divisor;
            }
            for (std::int64_t i = at; i < at + length; ++i) {
                z[i] = s.rstd * (z[i] - mean - (heads[i] - s.mean) * s.rstd * radial);
            }
        }
    }
    return g;
}

bool reference_sees(
    const AttentionMask& mask, std::int64_t T, std::int64_t S, std::int64_t t, std::int64_t j) {
    const std::int64_t position = t + S - T;
    if (mask.causal && j > position) return false;
    if (mask.window > 0 && position - j >= mask.window) return false;
    if (mask.window > 0 && j - position >= mask.window) return false;
    if (!mask.cu_seqlens.empty()) {
        bool same_document = false;
        for (std::size_t i = 0; i + 1 < mask.cu_seqlens.size(); ++i) {
            const std::int64_t begin = mask.cu_seqlens[i], end = mask.cu_seqlens[i + 1];
            same_document |= begin <= t && t < end && begin <= j && j < end;
        }
        if (!same_document) return false;
    }
    return true;
}

ReferenceResult reference_attention_forward(const ReferenceShape& s,
                                            const std::vector<double>& q,
                                            const std::vector<double>& k,
                                            const std::vector<double>& v,
                                            const ReferenceOptions& options) {
    const std::vector<double> turned_q = reference_qk_norm_rope(q, s.B, s.T, s.H, s.D, options.q);
    const std::vector<double> turned_k = reference_qk_norm_rope(k, s.B, s.S, s.K, s.D, options.k);
    const Operands operands{s, turned_q, turned_k, options.attention};
    const auto heads = static_cast<std::size_t>(s.H);
    ReferenceResult result;
    result.out.assign(size_of_product({s.B, s.T, s.H, s.D}), 0.0);
    result.lse.assign(size_of_product({s.B, s.H, s.T}), -kInfinity);
    result.max_logit.assign(heads, -kInfinity);
    result.max_logit_uncapped.assign(heads, -kInfinity);
    result.entropy.assign(heads, 0.0);
    result.entropy_share.assign(heads, 0.0);
    result.saturation.assign(heads, 0.0);
    for (std::int64_t h = 0; h < s.H; ++h) {
        double rows = 0.0, rows_with_a_choice = 0.0;
        for (std::int64_t b = 0; b < s.B; ++b) {
            for (std::int64_t t = 0; t < s.T; ++t) {
                const Row row = operands.row(b, t, h);
                result.lse[static_cast<std::size_t>((b * s.H + h) * s.T + t)] = row.lse;
                if (row.keys == 0) continue;
                result.max_logit[h] = std::max(result.max_logit[h], row.max);
                result.max_logit_uncapped[h] =
                    std::max(result.max_logit_uncapped[h], row.max_uncapped);
                double entropy = row.sink_p > 0.0 ? -row.sink_p * std::log(row.sink_p) : 0.0;
                double largest = row.sink_p;
                for (std::int64_t j = 0; j < s.S; ++j) {
                    if (row.p[j] == 0.0) continue;
                    entropy -= row.p[j] * std::log(row.p[j]);
                    largest = std::max(largest, row.p[j]);
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        result.out[operands.query(b, t, h) + d] +=
                            row.p[j] * v[operands.key(b, j, h) + d];
                    }
                }
                ++rows;
                result.entropy[h] += entropy;
                const std::int64_t keys = row.keys + (operands.sink ? 1 : 0);
                if (keys < 2) continue;
                ++rows_with_a_choice;
                result.entropy_share[h] += entropy / std::log(static_cast<double>(keys));
                if (largest >= 1.0 - 1.0 / 512.0) ++result.saturation[h];
            }
        }
        if (rows > 0.0) result.entropy[h] /= rows;
        if (rows_with_a_choice > 0.0) {
            result.entropy_share[h] /= rows_with_a_choice;
            result.saturation[h] /= rows_with_a_choice;
        }
    }
    return result;
}

ReferenceGradients reference_attention_backward(const ReferenceShape& s,
                                                const std::vector<double>& q,
                                                const std::vector<double>& k,
                                                const std::vector<double>& v,
                                                const std::vector<double>& dout,
                                                const ReferenceOptions& options) {
    const std::vector<double> turned_q = reference_qk_norm_rope(q, s.B, s.T, s.H, s.D, options.q);
    const std::vector<double> turned_k = reference_qk_norm_rope(k, s.B, s.S, s.K, s.D, options.k);
    const Operands operands{s, turned_q, turned_k, options.attention};
    std::vector<double> dq(q.size(), 0.0), dk(k.size(), 0.0), dv(v.size(), 0.0);
    std::vector<double> dp(static_cast<std::size_t>(s.S));
    std::vector<double> dsink(operands.sink ? static_cast<std::size_t>(s.H) : 0, 0.0);
    for (std::int64_t b = 0; b < s.B; ++b) {
        for (std::int64_t h = 0; h < s.H; ++h) {
            for (std::int64_t t = 0; t < s.T; ++t) {
                const Row row = operands.row(b, t, h);
                if (row.keys == 0) continue;
                const std::size_t at = operands.query(b, t, h);
                double mean = 0.0;  // sum_j p_j dp_j
                for (std::int64_t j = 0; j < s.S; ++j) {
                    dp[j] = 0.0;
                    if (row.p[j] == 0.0) continue;
                    const std::size_t key = operands.key(b, j, h);
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        dp[j] += dout[at + d] * v[key + d];
                        dv[key + d] += row.p[j] * dout[at + d];
                    }
                    mean += row.p[j] * dp[j];
                }
                if (operands.sink) dsink[h] -= row.sink_p * mean;  // its dp is 0
                for (std::int64_t j = 0; j < s.S; ++j) {
                    if (row.p[j] == 0.0) continue;
                    const std::size_t key = operands.key(b, j, h);
                    const double ds = operands.scale() * row.slope[j] * row.p[j] * (dp[j] - mean);
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        dq[at + d] += ds * turned_k[key + d];
                        dk[key + d] += ds * turned_q[at + d];
                    }
                }
            }
        }
    }
    ReferenceQkNormRopeGradients of_q =
        reference_qk_norm_rope_backward(dq, q, s.B, s.T, s.H, s.D, options.q);
    ReferenceQkNormRopeGradients of_k =
        reference_qk_norm_rope_backward(dk, k, s.B, s.S, s.K, s.D, options.k);
    return {std::move(of_q.dx),    std::move(of_k.dx),    std::move(dv),
            std::move(of_q.dgain), std::move(of_k.dgain), std::move(dsink)};
}

}  // namespace evenkeel
