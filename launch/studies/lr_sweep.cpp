// evenkeel study lr-sweep: what each method makes of learning rates from too low to far too high. LR sensitivity after
// Wortsman et al. 2023, section 2.2: the mean over the rates of min(loss, first loss) less the method's best loss.
#include <algorithm>
#include <cmath>

#include "framework/json.h"
#include "launch/saved_run.h"
#include "launch/studies/registry.h"
#include "launch/studies/rig.h"
#include "model/method.h"

namespace evenkeel::study {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBase = "plain";
constexpr const char* kOverhead = "overhead";

std::string key_of(const std::string& method, const std::string& rate) {
    return method + "_" + rate;
}

double reached_loss(const PointResult& result) {
    const double first = result.number("initial_loss"), loss = result.number("loss");
    return std::isfinite(loss) ? std::min(loss, first) : first;
}

struct MethodSummary {
    std::string method;
    double best = INFINITY, sensitivity = NAN, overhead = NAN;
    std::string best_rate;
    std::int64_t measured = 0;
};

class LrSweep final : public Study {
  public:
    const char* name() const override { return "lr-sweep"; }
    const char* summary() const override {
        return "Loss, largest logit and entropy of every method over learning rates, and LR "
               "sensitivity";
    }
    bool has_points() const override { return true; }
    void visit_fields(ConfigVisitor& v) override {
        v.field("methods", methods_, "names of evenkeel methods");
        v.field("rates", rates_, "peak learning rates");
        v.field("overhead_pairs", overhead_pairs_,
                "pairs of steps that tell what a method adds to plain attention's; 0: none");
        rig_.visit_fields(v);
    }
    void validate() const override {
        for (const double rate : numbers_of("rates", rates_)) {
            check_rate("rates", rate);
        }
        check_range("overhead_pairs", static_cast<double>(overhead_pairs_), 0, 10000);
        rig_.validate();
        EVENKEEL_CHECK_CODE(!words_of(methods_).empty(), ErrorCode::kConfig, "study",
                            "methods: got none, want at least one");
        for (const std::string& method : words_of(methods_)) rig_.model(method).validate(1);
    }

    void compute_point(const StudyCommand& command) override {
        begin_point();
        for (const std::string& method : words_of(methods_)) {
            if (command.point == key_of(method, kOverhead)) {
                return keep_point(command, settings(),
                                  measure_overhead(rig_, method, kBase, overhead_pairs_));
            }
            for (const std::string& rate : words_of(rates_)) {
                if (command.point != key_of(method, rate)) continue;
                return keep_point(command, settings(),
                                  train_rig(rig_, rig_.model(method), std::stod(rate)));
            }
        }
        throw_error(ErrorCode::kConfig, "study",
                    concat("--point: got ", command.point, ", want METHOD_RATE of the two lists"));
    }

    Outcome run(const StudyCommand& command) override {
        PointPlan plan{{}, settings(), rig_.jobs};
        // Rate by rate, so that what is there early compares all methods.
        for (const std::string& rate : words_of(rates_)) {
            for (const std::string& method : words_of(methods_)) {
                plan.keys.push_back(key_of(method, rate));
            }
        }
        for (const std::string& method : words_of(methods_)) {
            if (method != kBase && overhead_pairs_ > 0) {
                plan.keys.push_back(key_of(method, kOverhead));
            }
        }
        results_ = run_points(command, plan);
        for (const std::string& method : words_of(methods_))
            summaries_.push_back(summarize(method));
        Outcome outcome;
        count_points(results_, outcome);
        outcome.tables = {summary_table(),
                          points_table("loss", "final held-out loss, nats a byte", "%.4f"),
                          points_table("max_logit", "largest logit in any step", "%.4g"),
                          points_table("max_logit_uncapped", "the same before a softcap", "%.4g"),
                          points_table("entropy", "mean entropy of the last step, nats", "%.3f"),
                          failures_table()};
        if (outcome.tables.back().rows.empty()) outcome.tables.pop_back();
        outcome.figures = {
            plot("loss", "Held-out loss", "nats a byte", LinePlot::Scale::kData),
            plot("max_logit", "Largest logit in any step", "logit", LinePlot::Scale::kLog),
            plot("entropy", "Entropy of the last step", "nats", LinePlot::Scale::kFromZero)};
        outcome.figures[0].wide = true;
        outcome.findings = findings();
        return outcome;
    }

  private:
    // What a point depends on beside its key.
    std::string settings() const {
        RigConfig rig = rig_;
        Json json = Json::parse(evenkeel::to_json([&](ConfigVisitor& v) { rig.visit_fields(v); }));
        json.erase("jobs");
        if (const std::string text = text_fingerprint(rig); !text.empty()) {
            json[kTextFingerprint] = text;
        }
        json["overhead_pairs"] = overhead_pairs_;
        return json.dump();
    }

    const PointResult& at(const std::string& method, const std::string& rate) const {
        return results_.at(key_of(method, rate));
    }

    MethodSummary summarize(const std::string& method) const {
        MethodSummary summary;
        summary.method = method;
        double sum = 0.0;
        for (const std::string& rate : words_of(rates_)) {
            const PointResult& result = at(method, rate);
            if (!result.failure.empty()) continue;
            const double loss = reached_loss(result);
            ++summary.measured;
            sum += loss;
            if (loss >= summary.best) continue;
            summary.best = loss;
            summary.best_rate = rate;
        }
        if (summary.measured > 0) {
            summary.sensitivity = sum / static_cast<double>(summary.measured) - summary.best;
        }
        const auto overhead = results_.find(key_of(method, kOverhead));
        if (method == kBase) summary.overhead = 0.0;
        if (overhead != results_.end()) summary.overhead = overhead->second.number("overhead");
        return summary;
    }

    Table summary_table() const {
        Table table{
            "methods",
            "methods over all learning rates",
            {{"method", "method"},
             {"sensitivity", "LR sensitivity", "%.3f"},
             {"best_loss", "best loss", "%.4f"},
             {"best_rate", "at"},
             {"overhead", "step against plain", "%+.1f %%"},
             {"points", "points", "%.0f"}},
            {},
            "LR sensitivity: mean over the rates of min(loss, first loss) - best loss. Step: "
            "processor time on one thread, steps in turn, median of the pairs' ratios."};
        for (const MethodSummary& s : summaries_) {
            const bool measured = s.measured > 0;
            table.rows.push_back({s.method, measured ? Cell(s.sensitivity) : Cell(),
                                  measured ? Cell(s.best) : Cell(), s.best_rate,
                                  std::isnan(s.overhead) ? Cell() : Cell(100.0 * s.overhead),
                                  static_cast<double>(s.measured)});
        }
        return table;
    }

    // A row a rate, a column a method.
    Table points_table(const std::string& what,
                       const std::string& title,
                       const char* pattern) const {
        Table table{what, title, {{"rate", "peak LR"}}, {}};
        for (const std::string& method : words_of(methods_)) {
            table.columns.push_back({method, method, pattern});
        }
        for (const std::string& rate : words_of(rates_)) {
            std::vector<Cell> row = {rate};
            for (const std::string& method : words_of(methods_)) {
                const PointResult& result = at(method, rate);
                row.push_back(result.failure.empty() ? Cell(result.number(what))
                                                     : Cell(std::string("failed")));
            }
            table.rows.push_back(std::move(row));
        }
        return table;
    }

    Table failures_table() const {
        Table table{"failures", "points that failed", {{"point", "point"}, {"why", "why"}}, {}};
        for (const auto& [key, result] : results_) {
            if (!result.failure.empty()) table.rows.push_back({key, result.failure});
        }
        return table;
    }

    Figure plot(const std::string& what,
                const std::string& title,
                const std::string& unit,
                LinePlot::Scale scale) const {
        LinePlot plot;
        plot.unit = unit;
        plot.format = ".4g";
        plot.scale = scale;
        plot.x_title = "peak learning rate";
        plot.log_x = true;
        for (std::size_t i = 0; i < summaries_.size(); ++i) {
            Series series{summaries_[i].method, series_color(i), {}, Series::Style::kMarked};
            for (const std::string& rate : words_of(rates_)) {
                const PointResult& result = at(summaries_[i].method, rate);
                if (result.failure.empty())
                    series.points.push_back({std::stod(rate), result.number(what)});
            }
            plot.series.push_back(std::move(series));
        }
        return figure_of(title, plot);
    }

    std::vector<std::string> findings() const {
        std::vector<std::string> sentences;
        const auto base = std::find_if(summaries_.begin(), summaries_.end(),
                                       [](const MethodSummary& s) { return s.method == kBase; });
        if (base == summaries_.end() || base->measured == 0) return sentences;
        const std::vector<std::string> rates = words_of(rates_);
        const auto lowest = std::min_element(
            rates.begin(), rates.end(),
            [](const auto& a, const auto& b) { return std::stod(a) < std::stod(b); });
        for (const MethodSummary& s : summaries_) {
            if (s.method == kBase || s.measured == 0) continue;
            const double here = at(s.method, *lowest).number("loss");
            const double plain = at(kBase, *lowest).number("loss");
            sentences.push_back(
                concat(s.method, ": LR sensitivity ", format("%.3f", s.sensitivity), " (plain ",
                       format("%.3f", base->sensitivity), "), best loss ",
                       number_text("%+.4f", s.best - base->best), " against plain's best, ",
                       number_text("%+.4f", here - plain), " at the lowest rate (", *lowest, ")."));
        }
        return sentences;
    }

    std::string methods_ = "plain,rms,henry,cosine,softcap,sigma_reparam,ngpt,qk_clip";
    std::string rates_ = "3e-4,1e-3,3e-3,1e-2,3e-2,1e-1,3e-1";
    std::int64_t overhead_pairs_ = 15;
    RigConfig rig_;
    std::map<std::string, PointResult> results_;
    std::vector<MethodSummary> summaries_;
};

}  // namespace

std::unique_ptr<Study> make_lr_sweep() { return std::make_unique<LrSweep>(); }

}  // namespace evenkeel::study
