// evenkeel study dilution: one matching key, the needle, among ever more others. A bounded logit bounds what share of a
// long row one key can get. Through flash attention: the needle's value is one in a channel of its own, so that the
// output holds its probability; lse tells what a sink takes.
#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/flash_attention.h"
#include "launch/saved_run.h"
#include "launch/studies/heads.h"
#include "launch/studies/registry.h"

namespace evenkeel::study {
namespace {

constexpr std::int64_t kQueries = 16;
constexpr double kMostNumbers = 1 << 28, kMostSink = 80.0;  // e^80 is within fp32

// T random unit keys [T, D]; the first kQueries of them are the needles.
Tensor unit_keys(std::int64_t tokens, std::int64_t width, std::uint64_t seed) {
    std::vector<double> rows =
        normals(static_cast<std::size_t>(tokens * width), "dilution keys", seed);
    for (std::int64_t t = 0; t < tokens; ++t) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < width; ++d) {
            const double x = rows[static_cast<std::size_t>(t * width + d)];
            sum += x * x;
        }
        for (std::int64_t d = 0; d < width; ++d) {
            rows[static_cast<std::size_t>(t * width + d)] /= std::sqrt(sum);
        }
    }
    return to_tensor(rows, {1, tokens, 1, width});
}

// Of one query's row: what its needle gets, and what a sink takes.
struct Shares {
    double needle = 0.0, sink = 0.0;
};

class Dilution final : public Study {
  public:
    const char* name() const override { return "dilution"; }
    const char* summary() const override {
        return "What share one matching key gets among T, for several gains, with and without a "
               "sink";
    }
    void visit_fields(ConfigVisitor& v) override {
        v.field("tokens", tokens_, "numbers of keys");
        v.field("gains", gains_, "g of unit-length queries and keys, logits g cos");
        v.field("length_gain", length_gain_, "also g = log2(T^2 - T), which grows with the row");
        v.field("head_dim", head_dim_, "width of the head");
        v.field("sink", sink_, "logit of the sink");
        v.field("bounds", bounds_,
                "bounds of |logit| for the second table: what a sink that is a key can take");
        v.field("seed", seed_, "of the keys");
    }
    void validate() const override {
        check_head_dim(head_dim_);
        check_range("sink", sink_, -kMostSink, kMostSink);
        for (const double tokens : numbers_of("tokens", tokens_)) {
            // Keys and values of one head, in memory at once.
            check_range("tokens", tokens, kQueries, std::floor(kMostNumbers / head_dim_));
            EVENKEEL_CHECK_CODE(tokens == std::floor(tokens), ErrorCode::kConfig, "study",
                                "tokens: got ", tokens, ", want whole numbers");
        }
        // They are factors of the logits; to flash attention one of 0 stands for 1 / sqrt(D).
        for (const auto& [name, text] :
             {std::pair{"gains", gains_}, std::pair{"bounds", bounds_}}) {
            for (const double factor : numbers_of(name, text)) {
                check_range(name, factor, 1e-6, 1e6);
            }
        }
    }

    Outcome run(const StudyCommand&) override {
        Table needle{
            "needle",
            "share of the matching key, mean of 16 queries",
            {{"tokens", "keys", "%.0f"},
             {"gain", "g", "%.4g"},
             {"measured", "measured", "%.4f"},
             {"expected", "closed form", "%.4f"},
             {"with_sink", "with sink", "%.4f"},
             {"with_sink_expected", "closed form", "%.4f"},
             {"sink_takes", "sink takes", "%.2g"}},
            {},
            concat("Closed form for random unit keys: 1 / (1 + (T - 1) e^(g^2 / 2D - g)), with "
                   "e^(sink - g) more in the denominator for a sink of logit ",
                   sink_, ".")};
        for (const double tokens : numbers_of("tokens", tokens_)) {
            const auto T = static_cast<std::int64_t>(tokens);
            const Tensor keys = unit_keys(T, head_dim_, static_cast<std::uint64_t>(seed_));
            std::vector<double> gains = numbers_of("gains", gains_);
            if (length_gain_) gains.push_back(std::log2(tokens * tokens - tokens));
            for (const double g : gains) add_needle(needle, keys, g);
        }
        const Table sink = sink_key_table();
        Outcome outcome;
        outcome.tables = {needle, sink};
        outcome.figures = {needle_plot(needle), sink_plot(sink)};
        outcome.findings = findings(needle);
        return outcome;
    }

  private:
    // keys [1, T, 1, D] of any length; query i is key i.
    Shares measure(const Tensor& keys, double g, bool with_sink) const {
        const std::int64_t T = keys.size(1), D = head_dim_, H = 1;
        const Tensor v = Tensor::zeros({1, T, H, D}, DType::kFloat32);
        for (std::int64_t t = 0; t < kQueries; ++t) v.data<float>()[t * D + t] = 1.0f;
        const Tensor q = keys.slice(1, 0, kQueries);
        AttentionOptions options;
        options.mask.causal = false;
        options.softmax_scale = g;
        if (with_sink) {
            options.sink = Tensor::full({H}, static_cast<float>(sink_), DType::kFloat32);
        }
        const Tensor out = Tensor::uninitialized(q.shape(), DType::kFloat32);
        const Tensor lse = Tensor::uninitialized({1, H, kQueries}, DType::kFloat32);
        flash_attention_forward(q, keys, v, options, out, lse, nullptr);
        Shares mean;
        for (std::int64_t i = 0; i < kQueries; ++i) {
            mean.needle += static_cast<double>(out.data<float>()[i * D + i]) / kQueries;
            if (with_sink) {
                mean.sink += std::exp(sink_ - static_cast<double>(lse.data<float>()[i])) / kQueries;
            }
        }
        return mean;
    }

    void add_needle(Table& table, const Tensor& keys, double g) const {
        const auto T = static_cast<double>(keys.size(1)), D = static_cast<double>(head_dim_);
        const double others = (T - 1.0) * std::exp(g * g / (2.0 * D) - g);
        const double sink = std::exp(sink_ - g);
        const Shares plain = measure(keys, g, false), with_sink = measure(keys, g, true);
        table.rows.push_back({T, g, plain.needle, 1.0 / (1.0 + others), with_sink.needle,
                              1.0 / (1.0 + others + sink), with_sink.sink});
    }

    // The largest share that one key can have: its logit at the bound, all others at 0 or at minus the bound.
    Table sink_key_table() const {
        Table table{
            "sink_key",
            "share of a key at the bound, as a sink that is an ordinary key",
            {{"bound", "bound", "%.4g"},
             {"tokens", "keys", "%.0f"},
             {"at_zero", "others at 0", "%.3f"},
             {"at_zero_expected", "closed form", "%.3f"},
             {"at_minus_bound", "others at -bound", "%.3f"},
             {"at_minus_bound_expected", "closed form", "%.3f"}},
            {},
            "Closed form 1 / (1 + (T - 1) e^-B) and 1 / (1 + (T - 1) e^-2B). A learned sink is "
            "outside the norm: its logit has no bound."};
        for (const double bound : numbers_of("bounds", bounds_)) {
            for (const double tokens : numbers_of("tokens", tokens_)) {
                std::vector<Cell> row = {bound, tokens};
                for (const double other : {0.0, -1.0}) {
                    row.emplace_back(
                        share_of_first_key(static_cast<std::int64_t>(tokens), bound, other));
                    row.emplace_back(1.0 /
                                     (1.0 + (tokens - 1.0) * std::exp((other - 1.0) * bound)));
                }
                table.rows.push_back(std::move(row));
            }
        }
        return table;
    }

    // Unit vectors along channel 0: the first key's logit is `bound`, the others' `other` times that.
    double share_of_first_key(std::int64_t tokens, double bound, double other) const {
        const std::int64_t D = head_dim_;
        const Tensor k = Tensor::zeros({1, tokens, 1, D}, DType::kFloat32);
        const Tensor v = Tensor::zeros({1, tokens, 1, D}, DType::kFloat32);
        for (std::int64_t t = 0; t < tokens; ++t) {
            k.data<float>()[t * D] = static_cast<float>(t == 0 ? 1.0 : other);
        }
        v.data<float>()[0] = 1.0f;
        const Tensor q = Tensor::zeros({1, 1, 1, D}, DType::kFloat32);
        q.data<float>()[0] = 1.0f;
        AttentionOptions options;
        options.mask.causal = false;
        options.softmax_scale = bound;
        const Tensor out = Tensor::uninitialized(q.shape(), DType::kFloat32);
        flash_attention_forward(q, k, v, options, out,
                                Tensor::uninitialized({1, 1, 1}, DType::kFloat32), nullptr);
        return static_cast<double>(out.data<float>()[0]);
    }

    static LinePlot share_plot() {
        LinePlot plot;
        plot.unit = "share";
        plot.format = ".4f";
        plot.scale = LinePlot::Scale::kFromZero;
        plot.x_title = "keys";
        plot.log_x = true;
        return plot;
    }

    Figure needle_plot(const Table& table) const {
        LinePlot plot = share_plot();
        const std::size_t fixed = numbers_of("gains", gains_).size();
        const std::size_t series = fixed + (length_gain_ ? 1 : 0);
        for (std::size_t i = 0; i < series; ++i) {
            const std::string label =
                i < fixed ? "g = " + format("%.4g", std::get<double>(table.rows[i][1]))
                          : "g = log2(T^2 - T)";
            Series line{label, series_color(i), {}, Series::Style::kMarked};
            for (std::size_t row = i; row < table.rows.size(); row += series) {
                line.points.push_back(
                    {std::get<double>(table.rows[row][0]), std::get<double>(table.rows[row][2])});
            }
            plot.series.push_back(std::move(line));
        }
        return figure_of("Share of the matching key", plot);
    }

    Figure sink_plot(const Table& table) const {
        LinePlot plot = share_plot();
        const std::vector<double> bounds = numbers_of("bounds", bounds_);
        const std::size_t rows = table.rows.size() / bounds.size();
        for (std::size_t i = 0; i < bounds.size(); ++i) {
            Series line{
                "bound " + format("%.4g", bounds[i]), series_color(i), {}, Series::Style::kMarked};
            for (std::size_t row = i * rows; row < (i + 1) * rows; ++row) {
                line.points.push_back(
                    {std::get<double>(table.rows[row][1]), std::get<double>(table.rows[row][2])});
            }
            plot.series.push_back(std::move(line));
        }
        return figure_of("Share of a sink that is a key, others at 0", plot);
    }

    std::vector<std::string> findings(const Table& table) const {
        const std::size_t fixed = numbers_of("gains", gains_).size();
        const std::size_t series = fixed + (length_gain_ ? 1 : 0);
        const auto& first = table.rows.front();
        const auto& last = table.rows[table.rows.size() - series];
        std::vector<std::string> sentences = {
            concat("At g = ", format("%.4g", std::get<double>(first[1])), " the matching key has ",
                   format("%.4f", std::get<double>(first[2])), " of a row of ",
                   format("%.0f", std::get<double>(first[0])), " keys and ",
                   format("%.4f", std::get<double>(last[2])), " of one of ",
                   format("%.0f", std::get<double>(last[0])), ".")};
        if (length_gain_) {
            const double kept = std::get<double>(table.rows.back()[2]);
            const double before = std::get<double>(table.rows[series - 1][2]);
            sentences.push_back(concat("With g = log2(T^2 - T) it has ", format("%.4f", before),
                                       " of the first and ", format("%.4f", kept), " of the last: ",
                                       kept >= 0.9 * before
                                           ? "a gain that grows with the logarithm of the row's "
                                             "length keeps it."
                                           : "here such a gain does not keep it."));
        }
        double given_back = 0.0;
        for (const std::vector<Cell>& row : table.rows) {
            given_back = std::max(given_back, std::get<double>(row[4]) - std::get<double>(row[2]));
        }
        sentences.push_back(
            given_back < 1e-4
                ? std::string("With a sink the matching key has no more of any row than without: "
                              "a sink does not give it back what a bounded logit takes.")
                : concat("With a sink the matching key has up to ", format("%.4f", given_back),
                         " more of a row than without."));
        return sentences;
    }

    std::string tokens_ = "16,128,1024,4096,16384,65536,131072";
    std::string gains_ = "5,10,20";
    std::string bounds_ = "5.657,8,11.314";
    bool length_gain_ = true;
    std::int64_t head_dim_ = 64, seed_ = 1;
    double sink_ = 0.0;
};

}  // namespace

std::unique_ptr<Study> make_dilution() { return std::make_unique<Dilution>(); }

}  // namespace evenkeel::study
