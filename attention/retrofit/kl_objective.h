// How far attention with other gains is from the attention that was, as a function of the gains: the mean over
// query rows i of the Kullback-Leibler divergence
//
//   F(g) = 1/n sum_i sum_j p_ij ln(p_ij / p'_ij),   p'_i = softmax over j of (g . phi_ij)
//
// where p is given and features phi_ij = a_i c_j + b_i e_j (products by element) make logits linear in gains: F is
// convex. With mu_i the mean of phi_ij under p'_i,
//
//   gradient 1/n sum_i (mu_i - sum_j p_ij phi_ij),   Hessian 1/n sum_i Cov under p'_i of phi_ij
//
// A sink is one more key, of features 0 and a logit of its own. (Derivation: docs/math.md, "Gains for a trained
// model".) All in double; the result does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace evenkeel {

// Gains, in the order of features, are padded to `width`: what lies behind is zero.
std::int64_t kl_width(std::int64_t features);

// Keys of one sequence: rows [c_j, e_j] of twice the width.
struct KlKeys {
    std::vector<double> rows;  // [count, 2 width]
};

class KlObjective {
  public:
    explicit KlObjective(std::int64_t features);

    std::int64_t features() const { return features_; }
    std::int64_t width() const { return width_; }
    std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }

    // What F needs of query row ab = [a_i, b_i] ([2 width]) that sees keys first .. first + logits.size() - 1,
    // at least one, with `logits` before. sink: the sink's logit; -infinity: none.
    struct Row {
        std::shared_ptr<const KlKeys> keys;
        std::int64_t first = 0, count = 0;
        double sink = 0.0;
        std::vector<double> ab;      // [2 width]
        std::vector<double> target;  // [width]: sum over keys of p_ij phi_ij
        double constant =
            0.0;  // sum over keys of p_ij s_ij, less ln of the sum of exponentials of s_ij
        double max_logit = 0.0, entropy = 0.0;  // as they were
    };
    Row make_row(std::shared_ptr<const KlKeys> keys,
                 std::int64_t first,
                 std::vector<double> ab,
                 std::span<const double> logits,
                 double sink) const;
    void add(Row row);

    // F at g [features]. gradient [features] and hessian [features, features]: written unless null; no
    // Hessian without gradient. F of no rows is 0.
    double evaluate(std::span<const double> g, double* gradient, double* hessian) const;

    struct Judgement {
        std::vector<double> divergence;  // of each row, in the order in which they came
        double max_logit = 0.0;          // largest magnitude
        double entropy_sum = 0.0;        // over rows that see two keys or more, the sink counted
        std::int64_t entropy_rows = 0;
    };
    Judgement judge(std::span<const double> g) const;
    // The same of the logits as they were: divergences 0.
    Judgement before() const;

  private:
    // Of every kChunks-th row from `first` on; gradient and hessian are [width] and [width, width].
    double evaluate_chunk(std::span<const double> g,
                          std::size_t first,
                          double* gradient,
                          double* hessian) const;
    void logits(std::span<const double> g, const Row& row, std::vector<double>& to) const;

    std::int64_t features_, width_;
    std::vector<Row> rows_;
    std::int64_t numbers_ = 0;  // of keys that rows see: work
};

}  // namespace evenkeel
