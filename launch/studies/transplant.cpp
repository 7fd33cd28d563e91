// evenkeel study transplant: training with queries and keys of a fixed length, z -> sqrt(kappa) z / rms(z), for kappa
// from 1 to far too large (Wortsman et al. 2023, section 3.2 and figure 10: whether large logits by themselves do harm).
#include <algorithm>
#include <cmath>

#include "framework/json.h"
#include "launch/saved_run.h"
#include "launch/studies/registry.h"
#include "launch/studies/rig.h"

namespace evenkeel::study {
namespace {

using Json = nlohmann::ordered_json;

class Transplant final : public Study {
  public:
    const char* name() const override { return "transplant"; }
    const char* summary() const override {
        return "Training with all logits scaled to kappa sqrt(d) cos: how large is too large?";
    }
    bool has_points() const override { return true; }
    void visit_fields(ConfigVisitor& v) override {
        v.field("kappas", kappas_, "squared lengths of queries and keys, a channel");
        v.field("rate", rate_, "peak learning rate");
        rig_.visit_fields(v);
    }
    void validate() const override {
        for (const double kappa : numbers_of("kappas", kappas_)) {
            check_range("kappas", kappa, 1e-6, 1e6);
        }
        check_rate("rate", rate_);
        rig_.validate();
    }

    void compute_point(const StudyCommand& command) override {
        begin_point();
        for (const std::string& kappa : words_of(kappas_)) {
            if (command.point != "kappa_" + kappa) continue;
            return keep_point(command, settings(), train_rig(rig_, model(std::stod(kappa)), rate_));
        }
        throw_error(ErrorCode::kConfig, "study",
                    concat("--point: got ", command.point, ", want kappa_NUMBER of the list"));
    }

    Outcome run(const StudyCommand& command) override {
        PointPlan plan{{}, settings(), rig_.jobs};
        for (const std::string& kappa : words_of(kappas_)) plan.keys.push_back("kappa_" + kappa);
        const std::map<std::string, PointResult> results = run_points(command, plan);
        Table table{"kappas",
                    "trained with logits of kappa sqrt(d) cos",
                    {{"kappa", "kappa", "%g"},
                     {"bound", "bound", "%.4g"},
                     {"loss", "loss", "%.4f"},
                     {"against_first", "against the first", "%+.4f"},
                     {"entropy", "entropy", "%.3f"},
                     {"max_logit", "max logit", "%.4g"},
                     {"failure", "failed"}},
                    {}};
        LinePlot plot;
        plot.unit = "nats a byte";
        plot.format = ".4f";
        plot.x_title = "kappa";
        plot.log_x = true;
        plot.series = {{"held-out loss", series_color(0), {}, Series::Style::kMarked},
                       {"bigram entropy", series_color(2), {}, Series::Style::kDashed},
                       {"unigram entropy", series_color(4), {}, Series::Style::kDashed}};
        double first = NAN;
        for (const std::string& word : words_of(kappas_)) {
            const PointResult& result = results.at("kappa_" + word);
            const double kappa = std::stod(word), loss = result.number("loss");
            if (std::isnan(first)) first = loss;
            const bool ok = result.failure.empty();
            table.rows.push_back({kappa, kappa * std::sqrt(static_cast<double>(rig_.head_dim)),
                                  ok ? Cell(loss) : Cell(), ok ? Cell(loss - first) : Cell(),
                                  ok ? Cell(result.number("entropy")) : Cell(),
                                  ok ? Cell(result.number("max_logit")) : Cell(),
                                  ok ? Cell() : Cell(result.failure)});
            if (!ok) continue;
            plot.series[0].points.push_back({kappa, loss});
            plot.series[1].points.push_back({kappa, result.number("bigram")});
            plot.series[2].points.push_back({kappa, result.number("unigram")});
        }
        Outcome outcome;
        count_points(results, outcome);
        outcome.tables = {table};
        outcome.figures = {figure_of("Loss over kappa", plot)};
        outcome.figures[0].wide = true;
        if (!plot.series[0].points.empty()) {
            outcome.findings = {finding(plot.series[0].points, plot.series[1].points.front().y)};
        }
        return outcome;
    }

  private:
    // losses: over kappa, at least one.
    static std::string finding(const std::vector<Point>& losses, double bigram) {
        const auto by_kappa = [](const Point& a, const Point& b) { return a.x < b.x; };
        const auto [low, high] = std::minmax_element(losses.begin(), losses.end(), by_kappa);
        const std::string numbers = concat(
            "with kappa ", format("%g", high->x), " the loss is ", number_text("%.3f", high->y),
            " against ", number_text("%.3f", low->y), " with ", format("%g", low->x),
            "; counting pairs of bytes reaches ", format("%.3f", bigram), ".");
        if (low->x == high->x) {
            return concat("With kappa ", format("%g", low->x),
                          " alone there is nothing to compare: "
                          "the loss is ",
                          number_text("%.3f", low->y), ".");
        }
        if (std::isnan(low->y)) return "The smallest logits did not train: " + numbers;
        // Of two equal runs: what a different order of the same sums may do.
        constexpr double kNoDifference = 0.001;
        const double harm = high->y - low->y;
        if (std::isnan(harm) || harm > kNoDifference) {
            return "Large logits do harm by themselves: " + numbers;
        }
        return concat(harm < -kNoDifference ? "The larger logits do no harm here, they help: "
                                            : "The larger logits make no difference here: ",
                      numbers);
    }

    std::string settings() const {
        RigConfig rig = rig_;
        Json json = Json::parse(evenkeel::to_json([&](ConfigVisitor& v) { rig.visit_fields(v); }));
        json.erase("jobs");
        if (const std::string text = text_fingerprint(rig); !text.empty()) {
            json[kTextFingerprint] = text;
        }
        json["rate"] = rate_;
        return json.dump();
    }

    // Rows of rms 1 and kappa / sqrt(d) as the logits' scale: as sqrt(kappa) on q and on k.
    ModelConfig model(double kappa) const {
        ModelConfig config = rig_.model("rms");
        config.method.clear();
        config.attention.qk_norm.gain = QkNormConfig::Gain::kNone;
        config.attention.softmax_scale = kappa / std::sqrt(static_cast<double>(rig_.head_dim));
        return config;
    }

    std::string kappas_ = "1,10,100,1000,10000";
    double rate_ = 3e-3;
    RigConfig rig_;
};

}  // namespace

std::unique_ptr<Study> make_transplant() { return std::make_unique<Transplant>(); }

}  // namespace evenkeel::study
