#include "attention/retrofit/kl_objective.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/retrofit/kl_rows.h"
#include "framework/error.h"
#include "framework/thread_errors.h"

namespace evenkeel {
namespace {

// Rows are summed in as many parts, whatever the number of threads: the result is the same.
constexpr std::size_t kChunks = 16;
// Keys less probable steer no step: they are left out of the Hessian.
constexpr double kNegligible = 0x1p-44;
// Below this, starting threads costs more than it saves.
constexpr std::int64_t kParallelNumbers = 1 << 20;
// Rows of a block of the Hessian's product.
constexpr std::int64_t kBlock = 64;

struct Softmax {
    double log_sum = 0.0;
    double sink = 0.0;  // the sink's probability
};

// Turns logits to probabilities.
Softmax soften(std::vector<double>& logits, double sink) {
    double largest = sink;
    for (double z : logits) largest = std::max(largest, z);
    double sum = std::exp(sink - largest);
    const double sink_part = sum;
    for (double& z : logits) {
        z = std::exp(z - largest);
        sum += z;
    }
    for (double& z : logits) z /= sum;
    return {largest + std::log(sum), sink_part / sum};
}

double dot(std::span<const double> a, const double* b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Largest magnitude and entropy of a row.
void measure(std::span<const double> logits,
             std::span<const double> p,
             const Softmax& softmax,
             double sink,
             double& max_logit,
             double& entropy) {
    max_logit = 0.0;
    entropy = softmax.log_sum;
    for (std::size_t j = 0; j < logits.size(); ++j) {
        max_logit = std::max(max_logit, std::abs(logits[j]));
        entropy -= p[j] * logits[j];
    }
    if (softmax.sink > 0.0) entropy -= softmax.sink * sink;
    entropy = std::max(entropy, 0.0);
}

void add_judged(const KlObjective::Row& row,
                double divergence,
                double max_logit,
                double entropy,
                KlObjective::Judgement& to) {
    to.divergence.push_back(divergence);
    to.max_logit = std::max(to.max_logit, max_logit);
    if (row.count + (std::isfinite(row.sink) ? 1 : 0) < 2) return;
    to.entropy_sum += entropy;
    ++to.entropy_rows;
}

}  // namespace

std::int64_t kl_width(std::int64_t features) {
    return (features + kKlWidthStep - 1) / kKlWidthStep * kKlWidthStep;
}

KlObjective::KlObjective(std::int64_t features) : features_(features), width_(kl_width(features)) {}

KlObjective::Row KlObjective::make_row(std::shared_ptr<const KlKeys> keys,
                                       std::int64_t first,
                                       std::vector<double> ab,
                                       std::span<const double> logits,
                                       double sink) const {
    const auto count = static_cast<std::int64_t>(logits.size());
    EVENKEEL_CHECK(
        count > 0 && first >= 0 &&
            static_cast<std::int64_t>(keys->rows.size()) >= (first + count) * 2 * width_ &&
            static_cast<std::int64_t>(ab.size()) == 2 * width_,
        "KlObjective", "row: got keys ", first, " to ", first + count,
        ", want one or more that there are");
    Row row{std::move(keys), first, count, sink, std::move(ab), {}};
    std::vector<double> p(logits.begin(), logits.end());
    const Softmax softmax = soften(p, sink);
    measure(logits, p, softmax, sink, row.max_logit, row.entropy);
    row.constant = dot(logits, p.data()) - softmax.log_sum;
    const auto W = static_cast<std::size_t>(width_);
    std::vector<double> sum(2 * W);
    EVENKEEL_FOR_CURRENT_ISA(kl_sum)
    (p.data(), row.keys->rows.data() + first * 2 * width_, count, 2 * width_, sum.data());
    row.target.resize(W);
    for (std::size_t f = 0; f < W; ++f) {
        row.target[f] = row.ab[f] * sum[f] + row.ab[W + f] * sum[W + f];
    }
    return row;
}

void KlObjective::add(Row row) {
    numbers_ += row.count * 2 * width_;
    rows_.push_back(std::move(row));
}

void KlObjective::logits(std::span<const double> g, const Row& row, std::vector<double>& to) const {
    const auto W = static_cast<std::size_t>(width_);
    std::vector<double> weights(2 * W, 0.0);
    for (std::size_t f = 0; f < g.size(); ++f) {
        weights[f] = g[f] * row.ab[f];
        weights[W + f] = g[f] * row.ab[W + f];
    }
    to.resize(static_cast<std::size_t>(row.count));
    EVENKEEL_FOR_CURRENT_ISA(kl_dots)
    (weights.data(), row.keys->rows.data() + row.first * 2 * width_, row.count, 2 * width_,
     to.data());
}

double KlObjective::evaluate_chunk(std::span<const double> g,
                                   std::size_t first,
                                   double* gradient,
                                   double* hessian) const {
    const auto W = static_cast<std::size_t>(width_);
    std::vector<double> p, sum(2 * W), mean(W);
    std::vector<double> block(hessian != nullptr ? static_cast<std::size_t>(kBlock) * W : 0);
    std::int64_t filled = 0;
    const auto flush = [&] {
        EVENKEEL_FOR_CURRENT_ISA(kl_add_squares)(block.data(), filled, width_, hessian);
        filled = 0;
    };
    const auto next = [&] {  // room for one more row of the block
        if (filled == kBlock) flush();
        return block.data() + static_cast<std::size_t>(filled++) * W;
    };

    double value = 0.0;
    for (std::size_t r = first; r < rows_.size(); r += kChunks) {
        const Row& row = rows_[r];
        logits(g, row, p);
        const Softmax softmax = soften(p, row.sink);
        value += row.constant + softmax.log_sum - dot(g, row.target.data());
        if (gradient == nullptr) continue;

        const double* ab = row.ab.data();
        const double* keys = row.keys->rows.data() + row.first * 2 * width_;
        EVENKEEL_FOR_CURRENT_ISA(kl_sum)(p.data(), keys, row.count, 2 * width_, sum.data());
        for (std::size_t f = 0; f < W; ++f) {
            mean[f] = ab[f] * sum[f] + ab[W + f] * sum[W + f];
            gradient[f] += mean[f] - row.target[f];
        }
        // With one key and no sink there is nothing to choose.
        if (hessian == nullptr || (row.count == 1 && softmax.sink == 0.0)) continue;
        for (std::int64_t j = 0; j < row.count; ++j) {
            const double probability = p[static_cast<std::size_t>(j)];
            if (probability < kNegligible) continue;
            EVENKEEL_FOR_CURRENT_ISA(kl_centred)
            (ab, keys + j * 2 * width_, mean.data(), std::sqrt(probability), width_, next());
        }
        if (softmax.sink < kNegligible) continue;
        double* sink = next();  // features 0
        for (std::size_t f = 0; f < W; ++f) sink[f] = -std::sqrt(softmax.sink) * mean[f];
    }
    if (filled > 0) flush();
    return value;
}

double KlObjective::evaluate(std::span<const double> g, double* gradient, double* hessian) const {
    EVENKEEL_CHECK(static_cast<std::int64_t>(g.size()) == features_, "KlObjective", "gains: got ",
                   g.size(), ", want ", features_);
    const auto F = static_cast<std::size_t>(features_), W = static_cast<std::size_t>(width_);
    std::vector<double> values(kChunks, 0.0);
    std::vector<double> gradients(gradient != nullptr ? kChunks * W : 0, 0.0);
    std::vector<double> hessians(hessian != nullptr ? kChunks * W * W : 0, 0.0);
    ThreadErrors errors;
#pragma omp parallel for schedule(dynamic) if (numbers_ >= kParallelNumbers)
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
        errors.keep([&] {
            values[chunk] = evaluate_chunk(
                g, chunk, gradient != nullptr ? gradients.data() + chunk * W : nullptr,
                hessian != nullptr ? hessians.data() + chunk * W * W : nullptr);
        });
    }
    errors.rethrow();
    const double share = rows_.empty() ? 0.0 : 1.0 / static_cast<double>(rows_.size());
    const auto mean = [&](const std::vector<double>& parts, std::size_t stride, std::size_t at) {
        double sum = 0.0;
        for (std::size_t chunk = 0; chunk < kChunks; ++chunk) sum += parts[chunk * stride + at];
        return share * sum;
    };
    if (gradient != nullptr) {
        for (std::size_t f = 0; f < F; ++f) gradient[f] = mean(gradients, W, f);
    }
    if (hessian != nullptr) {
        for (std::size_t a = 0; a < F; ++a) {
            for (std::size_t b = a; b < F; ++b) {
                hessian[a * F + b] = hessian[b * F + a] = mean(hessians, W * W, a * W + b);
            }
        }
    }
    return mean(values, 1, 0);
}

KlObjective::Judgement KlObjective::judge(std::span<const double> g) const {
    std::vector<double> divergence(rows_.size()), max_logit(rows_.size()), entropy(rows_.size());
    const auto judge_row = [&](std::size_t r) {
        const Row& row = rows_[r];
        std::vector<double> z;
        logits(g, row, z);
        std::vector<double> p = z;
        const Softmax softmax = soften(p, row.sink);
        measure(z, p, softmax, row.sink, max_logit[r], entropy[r]);
        // Rounding may leave less than nothing.
        divergence[r] = std::max(0.0, row.constant + softmax.log_sum - dot(g, row.target.data()));
    };
    ThreadErrors errors;
#pragma omp parallel for schedule(dynamic, 16) if (numbers_ >= kParallelNumbers)
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        errors.keep([&] { judge_row(r); });
    }
    errors.rethrow();
    Judgement judgement;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        add_judged(rows_[r], divergence[r], max_logit[r], entropy[r], judgement);
    }
    return judgement;
}

KlObjective::Judgement KlObjective::before() const {
    Judgement judgement;
    for (const Row& row : rows_) add_judged(row, 0.0, row.max_logit, row.entropy, judgement);
    return judgement;
}

}  // namespace evenkeel
