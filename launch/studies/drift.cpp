// evenkeel study drift: logits as the weights of queries and keys grow, without and with normalisation. Through
// attention/ itself: the double reference, and the fp32 kernels beside it. With one-hot values the output of attention
// is its matrix of probabilities.
#include <algorithm>
#include <cmath>

#include "attention/qk_norm_rope.h"
#include "attention/reference_attention.h"
#include "launch/saved_run.h"
#include "launch/studies/heads.h"
#include "launch/studies/registry.h"

namespace evenkeel::study {
namespace {

constexpr std::int64_t kT = kDriftTokens, kD = kDriftWidth;
constexpr double kScales[] = {1, 2, 4, 8, 16};
constexpr double kGains[] = {1, 5, 10, 20, 50};
constexpr double kGain = 10.0;

struct Measured {
    double max_abs_logit = 0.0, top = 0.0, entropy = 0.0, slope = 0.0;
};

// Value j is one in channel j, so that channel j of an output row is the probability of key j.
std::vector<double> one_hot_values() {
    std::vector<double> v(static_cast<std::size_t>(kT * kD), 0.0);
    for (std::int64_t j = 0; j < kT; ++j) v[static_cast<std::size_t>(j * kD + j)] = 1.0;
    return v;
}

// The table's definitions: entropy as the mean over rows of -sum p ln(p + 1e-12), slope as the mean of the softmax's
// diagonal p (1 - p).
template <typename Number>
Measured summarize(const Number* out, double max_abs_logit) {
    Measured m;
    m.max_abs_logit = max_abs_logit;
    for (std::int64_t t = 0; t < kT; ++t) {
        for (std::int64_t j = 0; j < kT; ++j) {
            const auto p = static_cast<double>(out[t * kD + j]);
            m.top = std::max(m.top, p);
            m.entropy -= p * std::log(p + 1e-12) / kT;
            m.slope += p * (1.0 - p) / (kT * kT);
        }
    }
    return m;
}

// gain 0: plain attention, scaled by 1 / sqrt(D); else unit-length q and k, and logits of gain cos.
Measured measure_reference(const std::vector<double>& q,
                           const std::vector<double>& k,
                           double gain) {
    ReferenceOptions options;
    options.attention.mask.causal = false;
    if (gain != 0.0) {
        options.attention.softmax_scale = gain;
        options.q.kind = options.k.kind = QkNormKind::kL2;
        options.q.eps = options.k.eps = 0.0;
    }
    const ReferenceShape shape{1, kT, kT, 1, 1, kD};
    const std::vector<double> v = one_hot_values();
    const ReferenceResult r = reference_attention_forward(shape, q, k, v, options);
    // The largest of the negated logits is the smallest logit.
    const ReferenceResult negated =
        reference_attention_forward(shape, scaled(q, -1.0), k, v, options);
    return summarize(r.out.data(), std::max(r.max_logit[0], negated.max_logit[0]));
}

Tensor unit_length(const Tensor& x, double gain) {
    QkNormRopeOptions options;
    options.norm = QkNormKind::kL2;
    options.eps = 0.0;
    RopeConfig no_rotation;
    no_rotation.rotary_fraction = 0.0;
    const Tensor y = Tensor::uninitialized(x.shape(), DType::kFloat32);
    const Tensor gains = Tensor::full({kD}, static_cast<float>(gain), DType::kFloat32);
    qk_norm_rope_forward(x, gains, make_rope_table(no_rotation, kD, 0, kT), {}, options, y,
                         Tensor::uninitialized({1, kT, 1}, DType::kFloat32));
    return y;
}

Measured measure_kernels(const std::vector<double>& q_values,
                         const std::vector<double>& k_values,
                         double gain) {
    const Shape shape = {1, kT, 1, kD};
    Tensor k = to_tensor(k_values, shape);
    if (gain != 0.0) k = unit_length(k, 1.0);
    AttentionOptions options;
    options.mask.causal = false;
    options.softmax_scale = gain != 0.0 ? 1.0 : 0.0;
    const Tensor v = to_tensor(one_hot_values(), shape);
    const Tensor out = Tensor::uninitialized(shape, DType::kFloat32);
    const Tensor lse = Tensor::uninitialized({1, 1, kT}, DType::kFloat32);
    float largest = 0.0f;
    for (const double sign : {-1.0, 1.0}) {
        Tensor q = to_tensor(scaled(q_values, sign), shape);
        if (gain != 0.0) q = unit_length(q, gain);
        AttentionStats stats;
        flash_attention_forward(q, k, v, options, out, lse, &stats);
        largest = std::max(largest, stats.max_logit.data<float>()[0]);
    }
    return summarize(out.data<float>(), largest);
}

std::vector<Cell> row_of(double x, const Measured& m) {
    return {x, m.max_abs_logit, m.top, m.entropy, m.slope};
}

std::vector<Column> columns(const char* key, const char* title) {
    return {{key, title, "%g"},
            {"max_abs_logit", "max |logit|", "%.1f"},
            {"top_weight", "top weight", "%.4f"},
            {"entropy", "entropy", "%.3f"},
            {"slope", "mean softmax slope", "%.2e"}};
}

Figure plot_of(const std::string& title,
               const std::string& unit,
               const Table& plain,
               const Table& normalised,
               std::size_t column,
               LinePlot::Scale scale) {
    LinePlot plot;
    plot.unit = unit;
    plot.format = ".4g";
    plot.scale = scale;
    plot.x_title = "weight scale";
    plot.log_x = true;
    for (const Table* table : {&plain, &normalised}) {
        Series series{table == &plain ? "plain" : "unit length, g = 10",
                      series_color(table == &plain ? 0 : 1),
                      {},
                      Series::Style::kMarked};
        for (const std::vector<Cell>& row : table->rows) {
            series.points.push_back({std::get<double>(row[0]), std::get<double>(row[column])});
        }
        plot.series.push_back(std::move(series));
    }
    return figure_of(title, plot);
}

class Drift final : public Study {
  public:
    const char* name() const override { return "drift"; }
    const char* summary() const override {
        return "Logits as the weights of queries and keys grow, without and with unit length";
    }

    Outcome run(const StudyCommand&) override {
        Outcome outcome;
        Table plain = table("plain", "plain attention", "scale", "weight scale");
        Table normalised = table("normalised", "the same with unit-length q and k, g = 10", "scale",
                                 "weight scale");
        Table gains = table("gains", "unit-length q and k, scale 1", "gain", "g");
        for (const double s : kScales) {
            add(plain, s, s, 0.0);
            add(normalised, s, s, kGain);
        }
        for (const double g : kGains) add(gains, g, 1.0, g);
        outcome.tables = {plain, normalised, gains, kernels_};
        outcome.figures = {
            plot_of("Largest |logit|", "logit", plain, normalised, 1, LinePlot::Scale::kLog),
            plot_of("Entropy", "nats", plain, normalised, 3, LinePlot::Scale::kFromZero),
            plot_of("Mean softmax slope", "p (1 - p)", plain, normalised, 4,
                    LinePlot::Scale::kLog)};
        outcome.figures[0].wide = true;
        outcome.findings = findings(plain, normalised);
        return outcome;
    }

  private:
    static Table table(const char* key, const char* title, const char* x_key, const char* x_title) {
        return {key, title, columns(x_key, x_title), {}};
    }

    // The row in double, and what the fp32 kernels give in its place.
    void add(Table& table, double x, double scale, double gain) {
        const std::vector<double> q = scaled(drift_base_q(), scale);
        const std::vector<double> k = scaled(drift_base_k(), scale);
        table.rows.push_back(row_of(x, measure_reference(q, k, gain)));
        std::vector<Cell> row = {table.key};
        for (const Cell& cell : row_of(x, measure_kernels(q, k, gain))) row.push_back(cell);
        kernels_.rows.push_back(std::move(row));
    }

    static std::vector<std::string> findings(const Table& plain, const Table& normalised) {
        const auto cell = [](const Table& table, std::size_t row, std::size_t column) {
            return std::get<double>(table.rows[row][column]);
        };
        const std::size_t last = plain.rows.size() - 1;
        double spread = 0.0;
        for (std::size_t row = 0; row <= last; ++row) {
            for (std::size_t c = 1; c < 5; ++c) {
                spread =
                    std::max(spread, std::abs(cell(normalised, row, c) - cell(normalised, 0, c)));
            }
        }
        return {
            concat("Plain: weights ", format("%g", cell(plain, last, 0)),
                   " times as large make the largest logit ",
                   format("%.0f", cell(plain, last, 1) / cell(plain, 0, 1)),
                   " times as large, and the softmax's slope ",
                   format("%.0f", cell(plain, 0, 4) / cell(plain, last, 4)), " times as small."),
            spread == 0.0 ? "Unit length: no number changes at all, whatever the scale."
                          : concat("Unit length: no number changes by more than ",
                                   format("%.1g", spread), " over all scales.")};
    }

    Table kernels_{"kernels",
                   "the same rows by the fp32 kernels",
                   [] {
                       std::vector<Column> all = columns("x", "scale or g");
                       all.insert(all.begin(), Column{"table", "table"});
                       return all;
                   }(),
                   {}};
};

}  // namespace

std::unique_ptr<Study> make_drift() { return std::make_unique<Drift>(); }

}  // namespace evenkeel::study
