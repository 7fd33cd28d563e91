// evenkeel study temperature: logits ten times as large for some steps, within the warm-up or after it, and what is left
// of the harm at the end (a probe of Zhai et al. 2023, who lower the softmax's temperature).
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

constexpr const char* kTimes[] = {"never", "during", "after"};

class Temperature final : public Study {
  public:
    Temperature() { rig_.warmup = 0.3; }
    const char* name() const override { return "temperature"; }
    const char* summary() const override {
        return "Logits ten times as large for a while, during and after the warm-up";
    }
    bool has_points() const override { return true; }
    void visit_fields(ConfigVisitor& v) override {
        v.field("methods", methods_, "names of evenkeel methods");
        v.field("rate", rate_, "peak learning rate");
        v.field("factor", factor_, "of the logits, for a while");
        v.field("length", length_, "for how many steps");
        v.field("during", during_, "the first of them, for the run that is probed in its warm-up");
        v.field("after", after_, "the first of them, for the run that is probed later");
        rig_.visit_fields(v);
    }
    void validate() const override {
        check_rate("rate", rate_);
        check_range("factor", factor_, 1e-6, 1e6);
        rig_.validate();
        const auto steps = static_cast<double>(rig_.steps);
        check_range("length", static_cast<double>(length_), 1, steps);
        for (const auto& [name, first] : {std::pair{"during", during_}, {"after", after_}}) {
            check_range(name, static_cast<double>(first), 0, steps - static_cast<double>(length_));
        }
        for (const std::string& method : words_of(methods_)) rig_.model(method).validate(1);
    }

    void compute_point(const StudyCommand& command) override {
        begin_point();
        for (const std::string& method : words_of(methods_)) {
            for (const char* when : kTimes) {
                if (command.point != method + "_" + when) continue;
                return keep_point(command, settings(),
                                  train_rig(rig_, rig_.model(method), rate_, probe(when)));
            }
        }
        throw_error(
            ErrorCode::kConfig, "study",
            concat("--point: got ", command.point, ", want METHOD_never, _during or _after"));
    }

    Outcome run(const StudyCommand& command) override {
        PointPlan plan{{}, settings(), rig_.jobs};
        for (const std::string& method : words_of(methods_)) {
            for (const char* when : kTimes) plan.keys.push_back(method + "_" + when);
        }
        const std::map<std::string, PointResult> results = run_points(command, plan);
        Table table{"runs",
                    concat("logits times ", factor_, " for ", length_, " steps"),
                    {{"method", "method"},
                     {"when", "when"},
                     {"loss", "loss", "%.4f"},
                     {"harm", "against never", "%+.4f"},
                     {"worst_loss", "worst training loss since", "%.3f"},
                     {"least_entropy", "least entropy since", "%.3f"},
                     {"max_logit", "max logit", "%.4g"},
                     {"failure", "failed"}},
                    {}};
        Outcome outcome;
        count_points(results, outcome);
        for (const std::string& method : words_of(methods_)) {
            const double never = results.at(method + "_never").number("loss");
            for (const char* when : kTimes) {
                const PointResult& result = results.at(method + "_" + when);
                std::vector<Cell> row = {method, std::string(when)};
                if (result.failure.empty()) {
                    const auto [worst, least] = extremes(result, probe(when).begin);
                    row.insert(row.end(), {result.number("loss"), result.number("loss") - never,
                                           worst, least, result.number("max_logit"), Cell()});
                } else {
                    row.insert(row.end(), {Cell(), Cell(), Cell(), Cell(), Cell(), result.failure});
                }
                table.rows.push_back(std::move(row));
            }
            for (const auto& [curve, unit] :
                 {std::pair{"loss", "nats a byte"}, {"entropy", "nats"}}) {
                outcome.figures.push_back(plot(results, method, curve, unit));
            }
            const double during = results.at(method + "_during").number("loss") - never;
            const double after = results.at(method + "_after").number("loss") - never;
            outcome.findings.push_back(concat(method, ": ", number_text("%+.4f", during),
                                              " nats at the end from a probe during the warm-up, ",
                                              number_text("%+.4f", after), " from one after it."));
        }
        outcome.tables = {table};
        return outcome;
    }

  private:
    std::string settings() const {
        RigConfig rig = rig_;
        Json json = Json::parse(evenkeel::to_json([&](ConfigVisitor& v) { rig.visit_fields(v); }));
        json.erase("jobs");
        if (const std::string text = text_fingerprint(rig); !text.empty()) {
            json[kTextFingerprint] = text;
        }
        for (const auto& [name, value] : {std::pair{"rate", rate_},
                                          {"factor", factor_},
                                          {"length", static_cast<double>(length_)},
                                          {"during", static_cast<double>(during_)},
                                          {"after", static_cast<double>(after_)}}) {
            json[name] = value;
        }
        return json.dump();
    }

    LogitProbe probe(const std::string& when) const {
        if (when == "never") return {};
        const std::int64_t begin = when == "during" ? during_ : after_;
        return {factor_, begin, begin + length_};
    }

    // Largest loss and smallest entropy from step `begin` on.
    static std::pair<double, double> extremes(const PointResult& result, std::int64_t begin) {
        double worst = -INFINITY, least = INFINITY;
        const auto late = [&](const Point& p) { return p.x > static_cast<double>(begin); };
        const auto curve = [&](const char* name) {
            const auto found = result.curves.find(name);
            return found == result.curves.end() ? std::vector<Point>{} : found->second;
        };
        for (const Point& p : curve("loss")) worst = late(p) ? std::max(worst, p.y) : worst;
        for (const Point& p : curve("entropy")) least = late(p) ? std::min(least, p.y) : least;
        return {worst, least};
    }

    Figure plot(const std::map<std::string, PointResult>& results,
                const std::string& method,
                const std::string& curve,
                const std::string& unit) const {
        LinePlot plot;
        plot.unit = unit;
        plot.format = ".4f";
        std::size_t i = 0;
        for (const char* when : kTimes) {
            Series series{when, series_color(i++), {}};
            const auto& curves = results.at(method + "_" + when).curves;
            if (const auto found = curves.find(curve); found != curves.end())
                series.points = found->second;
            plot.series.push_back(std::move(series));
        }
        return figure_of(concat(method, ", ", curve), plot);
    }

    std::string methods_ = "plain,rms";
    double rate_ = 3e-3, factor_ = 10.0;
    std::int64_t length_ = 40, during_ = 20, after_ = 150;
    RigConfig rig_;
};

}  // namespace

std::unique_ptr<Study> make_temperature() { return std::make_unique<Temperature>(); }

}  // namespace evenkeel::study
