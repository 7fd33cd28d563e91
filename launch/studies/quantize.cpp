// evenkeel study quantize: queries and keys in int8, with and without the norm. Symmetric, x ~ s round(x / s) with
// s = max |x| / 127 over a whole tensor, over a head, or over each row of a head. What spreads magnitudes is added one
// by one: tokens of different norm, heads of different norm, and a few channels far larger than the rest.
#include <algorithm>
#include <cmath>

#include "attention/qk_norm_rope.h"
#include "framework/gemm.h"
#include "launch/saved_run.h"
#include "launch/studies/heads.h"
#include "launch/studies/registry.h"

namespace evenkeel::study {
namespace {

enum class Granularity { kTensor, kHead, kRow };
constexpr Granularity kGranularities[] = {Granularity::kTensor, Granularity::kHead,
                                          Granularity::kRow};

struct Data {
    const char* name;
    bool tokens, heads, channels;
};
constexpr Data kData[] = {{"normal numbers", false, false, false},
                          {"tokens differ", true, false, false},
                          {"heads differ", false, true, false},
                          {"outlier channels", false, false, true},
                          {"all of these", true, true, true}};

// x [1, T, H, D] as int8 holds it.
Tensor quantized(const Tensor& x, Granularity granularity) {
    const std::int64_t T = x.size(1), H = x.size(2), D = x.size(3);
    const Tensor y = x.clone();
    std::vector<float> largest(static_cast<std::size_t>(T * H),
                               0.0f);  // of each row, then of its group
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        float& row = largest[static_cast<std::size_t>(i / D)];
        row = std::max(row, std::abs(x.data<float>()[i]));
    }
    if (granularity == Granularity::kTensor) {
        std::fill(largest.begin(), largest.end(),
                  *std::max_element(largest.begin(), largest.end()));
    } else if (granularity == Granularity::kHead) {
        for (std::int64_t h = 0; h < H; ++h) {
            float of_head = 0.0f;
            for (std::int64_t t = 0; t < T; ++t) of_head = std::max(of_head, largest[t * H + h]);
            for (std::int64_t t = 0; t < T; ++t) largest[t * H + h] = of_head;
        }
    }
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        const float step = largest[static_cast<std::size_t>(i / D)] / 127.0f;
        if (step > 0.0f) y.data<float>()[i] = step * std::nearbyint(x.data<float>()[i] / step);
    }
    return y;
}

// || b - a || / || a ||.
double relative_error(const Tensor& a, const Tensor& b) {
    double error = 0.0, size = 0.0;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        const double exact = a.data<float>()[i], difference = b.data<float>()[i] - exact;
        error += difference * difference;
        size += exact * exact;
    }
    return std::sqrt(error / size);
}

Tensor head_of(const Tensor& x, std::int64_t h) {
    return x.slice(2, h, h + 1).contiguous().view({x.size(1), x.size(3)});
}

// Mean over heads, so that a loud head does not hide the others.
struct Errors {
    double q = 0.0, logits = 0.0;
};

class Quantize final : public Study {
  public:
    const char* name() const override { return "quantize"; }
    const char* summary() const override {
        return "Error of int8 queries, keys and logits, with and without the norm";
    }
    void visit_fields(ConfigVisitor& v) override {
        v.field("tokens", tokens_, "rows of each head");
        v.field("heads", heads_, "number of heads");
        v.field("head_dim", head_dim_, "width of a head");
        v.field("token_spread", token_spread_,
                "standard deviation of the logarithm of the tokens' norms");
        v.field("head_spread", head_spread_, "norm of the loudest head over that of the quietest");
        v.field("outliers", outliers_, "number of channels in each head that are larger");
        v.field("outlier_factor", outlier_factor_, "how many times larger");
        v.field("seed", seed_, "of the numbers");
    }
    void validate() const override {
        check_head_dim(head_dim_);
        check_range("heads", static_cast<double>(heads_), 1, 1024);
        // A head's logits, and the rows of all heads, are in memory at once.
        check_range(
            "tokens", static_cast<double>(tokens_), 1,
            std::min(16384.0, std::floor((1 << 26) / static_cast<double>(heads_ * head_dim_))));
        check_range("outliers", static_cast<double>(outliers_), 0, static_cast<double>(head_dim_));
        check_range("token_spread", token_spread_, 0.0, 2.0);
        check_range("head_spread", head_spread_, 1e-4, 1e4);
        check_range("outlier_factor", outlier_factor_, 1e-4, 1e4);
    }

    Outcome run(const StudyCommand&) override {
        Table table{"errors",
                    "relative error of int8, mean of the heads",
                    {{"data", "data"},
                     {"method", "method"},
                     {"q_per_tensor", "q, per tensor", "%.4f"},
                     {"q_per_head", "q, per head", "%.4f"},
                     {"q_per_row", "q, per row", "%.4f"},
                     {"logits_per_tensor", "logits, per tensor", "%.4f"},
                     {"logits_per_head", "logits, per head", "%.4f"},
                     {"logits_per_row", "logits, per row", "%.4f"}},
                    {}};
        for (const Data& data : kData) {
            for (const bool normalise : {false, true}) {
                std::vector<Cell> row = {std::string(data.name),
                                         std::string(normalise ? "rms" : "plain")};
                std::vector<Errors> errors;
                for (const Granularity g : kGranularities)
                    errors.push_back(measure(data, normalise, g));
                for (const Errors& e : errors) row.emplace_back(e.q);
                for (const Errors& e : errors) row.emplace_back(e.logits);
                table.rows.push_back(std::move(row));
            }
        }
        Outcome outcome;
        outcome.tables = {table};
        outcome.findings = findings(table);
        outcome.figures = {plot(table)};
        return outcome;
    }

  private:
    Tensor values(const Data& data, const char* what, bool normalise) const {
        const std::int64_t T = tokens_, H = heads_, D = head_dim_;
        const auto seed = static_cast<std::uint64_t>(seed_);
        std::vector<double> x = normals(static_cast<std::size_t>(T * H * D), what, seed);
        const std::vector<double> token_norms =
            normals(static_cast<std::size_t>(T * H), concat(what, " tokens"), seed);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            const std::int64_t row = at / D, head = row % H, channel = at % D;
            if (data.tokens)
                x[i] *= std::exp(token_spread_ * token_norms[static_cast<std::size_t>(row)]);
            if (data.heads && H > 1) {
                x[i] *=
                    std::pow(head_spread_, static_cast<double>(head) / static_cast<double>(H - 1));
            }
            if (data.channels && channel < outliers_) x[i] *= outlier_factor_;
        }
        const Tensor plain = to_tensor(x, {1, T, H, D});
        if (!normalise) return plain;
        RopeConfig no_rotation;
        no_rotation.rotary_fraction = 0.0;
        const Tensor y = Tensor::uninitialized(plain.shape(), DType::kFloat32);
        qk_norm_rope_forward(plain, {}, make_rope_table(no_rotation, D, 0, T), {}, {}, y,
                             Tensor::uninitialized({1, T, H}, DType::kFloat32));
        return y;
    }

    Errors measure(const Data& data, bool normalise, Granularity granularity) const {
        const Tensor q = values(data, "q", normalise), k = values(data, "k", normalise);
        const Tensor small_q = quantized(q, granularity), small_k = quantized(k, granularity);
        Errors errors;
        for (std::int64_t h = 0; h < heads_; ++h) {
            const auto logits = [&](const Tensor& a, const Tensor& b) {
                const Tensor product = Tensor::uninitialized({tokens_, tokens_}, DType::kFloat32);
                gemm(head_of(a, h), head_of(b, h), product, {.transpose_b = true});
                return product;
            };
            const auto heads = static_cast<double>(heads_);
            errors.q += relative_error(head_of(q, h), head_of(small_q, h)) / heads;
            errors.logits += relative_error(logits(q, k), logits(small_q, small_k)) / heads;
        }
        return errors;
    }

    static double cell(const Table& table, std::size_t row, std::size_t column) {
        return std::get<double>(table.rows[row][column]);
    }

    static Figure plot(const Table& table) {
        LinePlot plot;
        plot.unit = "relative error of logits";
        plot.format = ".4f";
        plot.scale = LinePlot::Scale::kLog;
        plot.x_title = "scales: 1 per tensor, 2 per head, 3 per row";
        for (std::size_t row = 0; row < table.rows.size(); ++row) {
            const bool is_plain = row % 2 == 0;
            if (row < table.rows.size() - 2 && row > 1 && !is_plain) continue;
            Series series{
                std::get<std::string>(table.rows[row][0]) + (is_plain ? ", plain" : ", rms"),
                series_color(row),
                {},
                Series::Style::kMarked};
            for (std::size_t i = 0; i < 3; ++i) {
                series.points.push_back({static_cast<double>(i + 1), cell(table, row, 5 + i)});
            }
            plot.series.push_back(std::move(series));
        }
        Figure figure = figure_of("Error of int8 logits", plot);
        figure.wide = true;
        return figure;
    }

    static std::vector<std::string> findings(const Table& table) {
        const std::size_t all = table.rows.size() - 2, channels = all - 2;
        const auto percent = [&](const char* pattern, std::size_t row, std::size_t column) {
            return format(pattern, 100.0 * cell(table, row, column)) + " %";
        };
        const double per_row = cell(table, all + 1, 7) / cell(table, all, 7);
        const bool little = per_row > 2.0 / 3.0 && per_row < 1.5;
        const bool outliers_stay = cell(table, channels + 1, 3) > 1.1 * cell(table, 1, 3);
        return {
            concat("With everything at once and one scale a tensor, logits are wrong by ",
                   percent("%.1f", all, 5), " plain and by ", percent("%.1f", all + 1, 5),
                   " after the norm."),
            concat("With a scale for each row the norm ",
                   little ? "changes little (" : "changes that as well (", percent("%.2f", all, 7),
                   " and ", percent("%.2f", all + 1, 7),
                   little ? "): such a scale takes out a row's norm itself." : ")."),
            concat("Outlier channels alone, with a scale for each head, leave q wrong by ",
                   percent("%.1f", channels, 3), " plain and by ", percent("%.1f", channels + 1, 3),
                   " after the norm, against ", percent("%.1f", 1, 3), " without outliers",
                   outliers_stay ? ": the norm bounds a row, not a channel." : ".")};
    }

    std::int64_t tokens_ = 256, heads_ = 8, head_dim_ = 64, outliers_ = 2, seed_ = 1;
    double token_spread_ = 0.5, head_spread_ = 16.0, outlier_factor_ = 20.0;
};

}  // namespace

std::unique_ptr<Study> make_quantize() { return std::make_unique<Quantize>(); }

}  // namespace evenkeel::study
