// evenkeel study order: normalise then rotate, against rotate then normalise. A logit should depend on how far apart
// two tokens are, not on where they stand.
#include <algorithm>
#include <cmath>

#include "attention/qk_norm_rope.h"
#include "attention/reference_attention.h"
#include "launch/saved_run.h"
#include "launch/studies/heads.h"
#include "launch/studies/registry.h"

namespace evenkeel::study {
namespace {

enum class Gains { kNone, kTied, kUntied };
constexpr struct {
    Gains gains;
    const char* name;
} kGainKinds[] = {{Gains::kNone, "none"},
                  {Gains::kTied, "tied within a rotation pair"},
                  {Gains::kUntied, "one a channel"}};

struct Spread {
    double spread = 0.0;        // largest minus smallest logit over the positions
    double first = 0.0;         // logit at the first position
    std::vector<Point> logits;  // over the position of the key
};

class Order final : public Study {
  public:
    const char* name() const override { return "order"; }
    const char* summary() const override {
        return "Norm then RoPE against RoPE then norm: does a logit depend on absolute positions?";
    }
    void visit_fields(ConfigVisitor& v) override {
        v.field("head_dim", head_dim_, "width of the head: 32, 64, 80, 96, 128, 192 or 256");
        v.field("distance", distance_, "from the key to the query, in tokens");
        v.field("positions", positions_, "how many places of the key are tried, from 0");
        v.field("gain_std", gain_std_, "standard deviation of the gains around 1");
        v.field("seed", seed_, "of query, key and gains");
    }
    void validate() const override {
        check_head_dim(head_dim_);
        check_range("distance", static_cast<double>(distance_), 0, 1 << 24);
        check_range("positions", static_cast<double>(positions_), 1, 1 << 16);
        check_range("gain_std", gain_std_, 0.0, 1e6);
    }

    Outcome run(const StudyCommand&) override {
        Table table{"spread",
                    concat("spread of one logit at distance ", distance_, ", the key at 0 to ",
                           positions_ - 1),
                    {{"gains", "gains"},
                     {"order", "order"},
                     {"spread", "spread", "%.2g"},
                     {"spread_fp32", "spread, fp32 kernels", "%.2g"},
                     {"logit", "logit at 0", "%.4f"}},
                    {}};
        LinePlot plot;
        plot.unit = "logit";
        plot.format = ".4f";
        plot.x_title = "position of the key";
        double worst_safe = 0.0, untied = 0.0, apart = 0.0;
        for (const auto& [gains, gains_name] : kGainKinds) {
            double first = 0.0;
            for (const bool norm_first : {true, false}) {
                const Spread exact = measure_reference(gains, norm_first);
                const char* order = norm_first ? "norm, then RoPE" : "RoPE, then norm";
                table.rows.push_back({std::string(gains_name), std::string(order), exact.spread,
                                      measure_kernels(gains, norm_first).spread, exact.first});
                const bool is_unsafe = gains == Gains::kUntied && !norm_first;
                (is_unsafe ? untied : worst_safe) =
                    std::max(is_unsafe ? untied : worst_safe, exact.spread);
                if (gains == Gains::kUntied) {
                    plot.series.push_back({order, series_color(norm_first ? 0 : 1), exact.logits});
                    if (!norm_first) apart = std::abs(exact.first - first);
                }
                first = exact.first;
            }
        }
        Outcome outcome;
        outcome.tables = {table};
        outcome.figures = {figure_of("The logit of two tokens, one gain a channel", plot)};
        outcome.figures[0].wide = true;
        const bool depends = untied > 1000.0 * worst_safe;
        outcome.findings = {
            depends
                ? concat("Rotating first, with a gain for each channel, the same two vectors at "
                         "the same distance get logits ",
                         format("%.2g", untied),
                         " apart, depending on where they stand; every other combination stays "
                         "within ",
                         format("%.0e", worst_safe), ".")
                : concat("With these gains no order depends on where two vectors stand: logits "
                         "stay within ",
                         format("%.0e", std::max(untied, worst_safe)), ".")};
        if (depends) {
            outcome.findings.push_back(
                concat("At position 0 the two orders already differ by ", format("%.2g", apart),
                       ": a model trained with one cannot be run with the other."));
        }
        return outcome;
    }

  private:
    std::vector<double> gain(Gains kind, const char* name) const {
        const auto width = static_cast<std::size_t>(head_dim_);
        std::vector<double> gains(width, 1.0);
        if (kind == Gains::kNone) return gains;
        const std::vector<double> noise = normals(width, name, static_cast<std::uint64_t>(seed_));
        for (std::size_t d = 0; d < width; ++d) {
            // Channels d and d + D/2 turn together.
            const std::size_t from = kind == Gains::kTied ? d % (width / 2) : d;
            gains[d] += gain_std_ * noise[from];
        }
        return gains;
    }

    std::vector<double> row(const char* name) const {
        return normals(static_cast<std::size_t>(head_dim_), name,
                       static_cast<std::uint64_t>(seed_));
    }

    // The row at every position first .. first + positions - 1, normalised and rotated: [positions, D].
    std::vector<double> placed(const std::vector<double>& x,
                               const std::vector<double>& gains,
                               bool norm_first,
                               std::int64_t first) const {
        std::vector<double> rows;
        ReferenceQkNormRope turn;
        turn.frequencies = rope_frequencies({}, head_dim_);
        for (std::int64_t t = 0; t < positions_; ++t) {
            rows.insert(rows.end(), x.begin(), x.end());
            turn.positions.push_back(first + t);
        }
        ReferenceQkNormRope norm;
        norm.kind = QkNormKind::kRms;
        norm.gain = gains;
        for (const ReferenceQkNormRope* step :
             {norm_first ? &norm : &turn, norm_first ? &turn : &norm}) {
            rows = reference_qk_norm_rope(rows, 1, positions_, 1, head_dim_, *step);
        }
        return rows;
    }

    template <typename Number>
    Spread spread_of(const Number* q, const Number* k) const {
        Spread result;
        double low = INFINITY, high = -INFINITY;
        for (std::int64_t t = 0; t < positions_; ++t) {
            double logit = 0.0;
            for (std::int64_t d = 0; d < head_dim_; ++d) {
                logit += static_cast<double>(q[t * head_dim_ + d]) *
                         static_cast<double>(k[t * head_dim_ + d]);
            }
            logit /= std::sqrt(static_cast<double>(head_dim_));
            low = std::min(low, logit), high = std::max(high, logit);
            result.logits.push_back({static_cast<double>(t), logit});
        }
        result.first = result.logits[0].y;
        result.spread = high - low;
        return result;
    }

    Spread measure_reference(Gains gains, bool norm_first) const {
        const std::vector<double> q =
            placed(row("q"), gain(gains, "q gain"), norm_first, distance_);
        const std::vector<double> k = placed(row("k"), gain(gains, "k gain"), norm_first, 0);
        return spread_of(q.data(), k.data());
    }

    // One call for norm and rotation, or two calls, the first of which only rotates and the second of which does not.
    Tensor placed_by_kernels(const std::vector<double>& x,
                             const std::vector<double>& gains,
                             bool norm_first,
                             std::int64_t first) const {
        std::vector<double> rows;
        for (std::int64_t t = 0; t < positions_; ++t) rows.insert(rows.end(), x.begin(), x.end());
        Tensor values = to_tensor(rows, {1, positions_, 1, head_dim_});
        const Tensor gain_values = to_tensor(gains, {head_dim_});
        const Tensor result = Tensor::uninitialized(values.shape(), DType::kFloat32);
        const Tensor rstd = Tensor::uninitialized({1, positions_, 1}, DType::kFloat32);
        RopeConfig none;
        none.rotary_fraction = 0.0;
        const RopeTable turn = make_rope_table({}, head_dim_, first, positions_);
        const RopeTable still = make_rope_table(none, head_dim_, first, positions_);
        if (norm_first) {
            qk_norm_rope_forward(values, gain_values, turn, {}, {}, result, rstd);
            return result;
        }
        QkNormRopeOptions only_turn;
        only_turn.norm = QkNormKind::kNone;
        qk_norm_rope_forward(values, {}, turn, {}, only_turn, values, {});
        qk_norm_rope_forward(values, gain_values, still, {}, {}, result, rstd);
        return result;
    }

    Spread measure_kernels(Gains gains, bool norm_first) const {
        const Tensor q = placed_by_kernels(row("q"), gain(gains, "q gain"), norm_first, distance_);
        const Tensor k = placed_by_kernels(row("k"), gain(gains, "k gain"), norm_first, 0);
        return spread_of(q.data<float>(), k.data<float>());
    }

    std::int64_t head_dim_ = 64, distance_ = 7, positions_ = 501, seed_ = 1;
    double gain_std_ = 0.3;
};

}  // namespace

std::unique_ptr<Study> make_order() { return std::make_unique<Order>(); }

}  // namespace evenkeel::study
