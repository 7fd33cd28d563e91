// evenkeel study half: where 16-bit floats give out as the weights of queries and keys grow, and that normalised
// attention lasts as long as its inputs do. Products and sums are accumulated in fp32 and rounded to fp16 once, as
// tensor cores and good kernels do.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/qk_norm_rope.h"
#include "framework/gemm.h"
#include "launch/saved_run.h"
#include "launch/studies/heads.h"
#include "launch/studies/registry.h"

namespace evenkeel::study {
namespace {

float as_half(float value) { return static_cast<float>(float16(value)); }

void round_to_half(const Tensor& x) {
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = as_half(x.data<float>()[i]);
}

// q k^T of fp32 operands, fp32.
Tensor dots(const Tensor& q, const Tensor& k) {
    const Tensor logits = Tensor::uninitialized({kDriftTokens, kDriftTokens}, DType::kFloat32);
    gemm(q, k, logits, {.transpose_b = true});
    return logits;
}

struct Counts {
    std::int64_t overflows = 0;
    bool finite = true;    // without a NaN or an infinity
    double largest = 0.0;  // of the finite magnitudes
};

// Of factor x, in fp16 or as it is.
Counts count(const Tensor& x, float factor, bool half) {
    Counts counts;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        const float exact = factor * x.data<float>()[i];
        const float value = half ? as_half(exact) : exact;
        if (std::isinf(value)) ++counts.overflows;
        if (std::isfinite(value)) {
            counts.largest = std::max<double>(counts.largest, std::abs(value));
        } else {
            counts.finite = false;
        }
    }
    return counts;
}

Tensor sums_of_squares(const Tensor& x) {
    const Tensor sums = Tensor::zeros({kDriftTokens}, DType::kFloat32);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        sums.data<float>()[i / kDriftWidth] += x.data<float>()[i] * x.data<float>()[i];
    }
    return sums;
}

// x held in fp16, the norm in fp32, rows of length sqrt(gain D) held in fp16.
Tensor normalised(const std::vector<double>& values, double gain) {
    const Tensor x = to_tensor(values, {1, kDriftTokens, 1, kDriftWidth});
    round_to_half(x);
    const Tensor y = Tensor::uninitialized(x.shape(), DType::kFloat32);
    RopeConfig no_rotation;
    no_rotation.rotary_fraction = 0.0;
    const Tensor gains =
        Tensor::full({kDriftWidth}, static_cast<float>(std::sqrt(gain)), DType::kFloat32);
    qk_norm_rope_forward(x, gains, make_rope_table(no_rotation, kDriftWidth, 0, kDriftTokens), {},
                         {}, y, Tensor::uninitialized({1, kDriftTokens, 1}, DType::kFloat32));
    round_to_half(y);
    return y.view({kDriftTokens, kDriftWidth});
}

class Half final : public Study {
  public:
    const char* name() const override { return "half"; }
    const char* summary() const override {
        return "Where fp16 overflows as the weights grow, in plain and in normalised attention";
    }
    void visit_fields(ConfigVisitor& v) override {
        v.field("scales", scales_, "factors of the queries and of the keys");
        v.field("gain", gain_, "of normalised attention: logits are gain times a cosine");
    }
    void validate() const override {
        for (const double scale : numbers_of("scales", scales_)) {
            check_range("scales", scale, 1e-6, 1e6);
        }
        check_range("gain", gain_, 1e-6, 1e6);
    }

    Outcome run(const StudyCommand&) override {
        const std::int64_t raw = first_overflow([&](double s) { return dots(q(s), k(s)); }, 1.0f);
        const std::int64_t scaled_logit =
            first_overflow([&](double s) { return dots(q(s), k(s)); }, kScale);
        const std::int64_t squares =
            first_overflow([&](double s) { return sums_of_squares(q(s)); }, 1.0f);
        const std::int64_t input = first_overflow([&](double s) { return q(s); }, 1.0f);
        Outcome outcome;
        outcome.tables = {
            {"first_overflow",
             "the first whole scale at which one value is beyond fp16",
             {{"what", "what"}, {"scale", "scale", "%.0f"}},
             {{std::string("sum of squares of a query"), static_cast<double>(squares)},
              {std::string("dot product"), static_cast<double>(raw)},
              {std::string("logit, scaled by 1/sqrt(d)"), static_cast<double>(scaled_logit)},
              {std::string("a channel of a query"), static_cast<double>(input)}}},
            scales_table()};
        outcome.figures = {plot(outcome.tables[1])};
        outcome.findings = {
            concat("In fp16 a plain dot product overflows from scale ", raw,
                   ", a scaled logit from ", scaled_logit,
                   ", and a norm that added up squares in fp16 would already from ", squares, "."),
            norm_finding(outcome.tables[1], input)};
        return outcome;
    }

  private:
    // Of the scales in the table; input: the first at which q itself is beyond fp16.
    static std::string norm_finding(const Table& table, std::int64_t input) {
        double highest = 0.0, lowest_bad = INFINITY;
        for (const std::vector<Cell>& row : table.rows) {
            const double scale = std::get<double>(row[0]);
            const bool finite = std::get<std::string>(row[5]) == "finite";
            if (finite) highest = std::max(highest, scale);
            if (!finite) lowest_bad = std::min(lowest_bad, scale);
        }
        if (highest == 0.0)
            return "With the norm in fp32, normalised logits are finite at no scale.";
        const std::string bad =
            std::isinf(lowest_bad)
                ? std::string(", the largest here")
                : concat(" and no longer at ", format("%g", lowest_bad),
                         lowest_bad >= static_cast<double>(input)
                             ? ": the inputs themselves leave fp16, and a norm cannot bring back "
                               "an infinity"
                             : ", where the inputs are finite still");
        return concat("With the norm in fp32, normalised logits are finite at scale ",
                      format("%g", highest), bad, "; inputs leave fp16 from scale ", input, ".");
    }

    static constexpr float kScale = 0.125f;  // 1 / sqrt(D)

    static Tensor q(double s) {
        return to_tensor(scaled(drift_base_q(), s), {kDriftTokens, kDriftWidth});
    }
    static Tensor k(double s) {
        return to_tensor(scaled(drift_base_k(), s), {kDriftTokens, kDriftWidth});
    }

    template <typename Values>
    static std::int64_t first_overflow(const Values& values, float factor) {
        std::int64_t fits = 0, too_large = 1 << 20;
        while (too_large - fits > 1) {
            const std::int64_t middle = (fits + too_large) / 2;
            const Tensor x = values(static_cast<double>(middle));
            (count(x, factor, true).overflows == 0 ? fits : too_large) = middle;
        }
        return too_large;
    }

    Table scales_table() const {
        Table table{"scales",
                    "of 256 logits, how many overflow",
                    {{"scale", "scale", "%g"},
                     {"raw_fp16", "raw, fp16", "%.0f"},
                     {"scaled_fp16", "scaled, fp16", "%.0f"},
                     {"scaled_fp32", "scaled, fp32", "%.0f"},
                     {"max_fp32", "max |logit|, fp32", "%.6g"},
                     {"normalised_finite", "normalised, fp16"},
                     {"normalised_max", "its max |logit|", "%.4f"}},
                    {}};
        for (const double s : numbers_of("scales", scales_)) {
            const Tensor raw = dots(q(s), k(s));
            const Counts fp32 = count(raw, kScale, false);
            const Tensor cosines = dots(normalised(scaled(drift_base_q(), s), gain_),
                                        normalised(scaled(drift_base_k(), s), gain_));
            const Counts bounded = count(cosines, 1.0f / kDriftWidth, true);
            table.rows.push_back({s, static_cast<double>(count(raw, 1.0f, true).overflows),
                                  static_cast<double>(count(raw, kScale, true).overflows),
                                  static_cast<double>(fp32.overflows), fp32.largest,
                                  std::string(bounded.finite ? "finite" : "not finite"),
                                  bounded.finite ? Cell(bounded.largest) : Cell()});
        }
        return table;
    }

    static Figure plot(const Table& table) {
        LinePlot plot;
        plot.unit = "logits beyond fp16, of 256";
        plot.format = ".0f";
        plot.scale = LinePlot::Scale::kFromZero;
        plot.x_title = "weight scale";
        plot.log_x = true;
        for (const std::size_t column : {1, 2}) {
            Series series{
                table.columns[column].title, series_color(column - 1), {}, Series::Style::kMarked};
            for (const std::vector<Cell>& row : table.rows) {
                series.points.push_back({std::get<double>(row[0]), std::get<double>(row[column])});
            }
            plot.series.push_back(std::move(series));
        }
        Figure figure = figure_of("Overflow in fp16", plot);
        figure.wide = true;
        return figure;
    }

    std::string scales_ = "1,16,28,56,100,158,200,400,1000,10000,20000,30000";
    double gain_ = 10.0;
};

}  // namespace

std::unique_ptr<Study> make_half() { return std::make_unique<Half>(); }

}  // namespace evenkeel::study
