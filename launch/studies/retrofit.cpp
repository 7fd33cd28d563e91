// evenkeel study retrofit: what it costs to give a trained model QK-norm, by how its gains are made, and how it finds
// back. Two small models that have been trained without: one calmly, one with so large a learning rate that its logits are.
#include <algorithm>
#include <cmath>
#include <set>

#include "framework/json.h"
#include "launch/recovery.h"
#include "launch/saved_run.h"
#include "launch/studies/registry.h"
#include "launch/studies/retrofit_points.h"

namespace evenkeel::study {
namespace {

using Json = nlohmann::ordered_json;

// What the norm is wanted to cost, nats.
constexpr double kCoolJump = 0.15, kHotJump = 0.05, kAnnealedExcess = 0.02, kFinalExcess = 0.01;
constexpr double kHotLogit = 200.0, kLogitRatio = 3.0;
constexpr const char* kGainsPoint = "gains";

std::string key_of(const BaseModel& base, std::string_view what) {
    return concat(base.name, "_", what);
}

std::string signed_nats(double value) { return format("%+.3f", value); }

// "at most +0.020: met".
std::string goal(const std::string& text, bool met) {
    return concat(" (goal: ", text, met ? "; met)" : "; missed)");
}

class Retrofit final : public Study {
  public:
    const char* name() const override { return "retrofit"; }
    const char* summary() const override {
        return "What QK-norm costs a trained model, by how its gains are made, and how it finds "
               "back";
    }
    bool has_points() const override { return true; }
    void visit_fields(ConfigVisitor& v) override { rig_.visit_fields(v); }
    void validate() const override { rig_.validate(); }

    void compute_point(const StudyCommand& command) override {
        begin_point();
        for (const BaseModel& base : base_models(rig_)) {
            if (command.point == base.name) {
                return keep_point(command, settings(), train_base(rig_, base, command.out));
            }
            if (command.point == key_of(base, kGainsPoint)) {
                return keep_point(command, settings(), measure_gains(rig_, base, command.out));
            }
            for (const Continuation& continuation : kContinuations) {
                if (command.point != key_of(base, continuation.name)) continue;
                return keep_point(command, settings(),
                                  continue_training(rig_, base, continuation, command.out));
            }
        }
        throw_error(ErrorCode::kConfig, "study",
                    concat("--point: got ", command.point,
                           ", want cool, hot or one of these with _gains, _control, _ones .."));
    }

    Outcome run(const StudyCommand& command) override {
        PointPlan plan{{}, settings(), rig_.rig.jobs};
        for (const BaseModel& base : base_models(rig_)) plan.keys.push_back(base.name);
        results_ = run_points(command, plan);
        plan.keys.clear();
        for (const BaseModel& base : base_models(rig_)) {
            if (!results_.at(base.name).failure.empty()) continue;
            plan.keys.push_back(key_of(base, kGainsPoint));
        }
        for (const Continuation& continuation : kContinuations) {
            for (const BaseModel& base : base_models(rig_)) {
                if (!results_.at(base.name).failure.empty()) continue;
                if (!continues(continuation, base)) continue;
                plan.keys.push_back(key_of(base, continuation.name));
            }
        }
        if (!plan.keys.empty()) results_.merge(run_points(command, plan));
        Outcome outcome;
        count_points(results_, outcome);
        for (const BaseModel& base : base_models(rig_)) {
            if (results_.at(base.name).failure.empty()) add_model(base, outcome);
        }
        outcome.tables.push_back(failures_table());
        if (outcome.tables.back().rows.empty()) outcome.tables.pop_back();
        return outcome;
    }

  private:
    std::string settings() const {
        RetrofitRig rig = rig_;
        Json json = Json::parse(evenkeel::to_json([&](ConfigVisitor& v) { rig.visit_fields(v); }));
        json.erase("jobs");
        if (const std::string text = text_fingerprint(rig.rig); !text.empty()) {
            json[kTextFingerprint] = text;
        }
        return json.dump();
    }

    // Null where it is not there or has failed.
    const PointResult* at(const BaseModel& base, std::string_view what) const {
        const auto found = results_.find(key_of(base, what));
        return found == results_.end() || !found->second.failure.empty() ? nullptr : &found->second;
    }

    // Of validation loss over the control's; without evaluations where a point is missing.
    Recovery recovery(const BaseModel& base, std::string_view what) const {
        const bool far = what.starts_with("far_");
        const PointResult *run = at(base, what),
                          *control = at(base, far ? "far_control" : "control");
        if (run == nullptr || control == nullptr) return {};
        const auto* const how = std::find_if(
            std::begin(kContinuations), std::end(kContinuations),
            [&](const Continuation& continuation) { return continuation.name == what; });
        const bool annealed = how != std::end(kContinuations) && how->annealed;
        return recovery_of(run->curves.at("validation"), control->curves.at("validation"),
                           annealed ? static_cast<double>(rig_.anneal) : 0.0);
    }

    void add_model(const BaseModel& base, Outcome& outcome) {
        if (const PointResult* gains = at(base, kGainsPoint)) {
            outcome.tables.push_back(gains_table(base, *gains));
            add_gains_findings(base, *gains, outcome.findings);
        }
        if (at(base, "control") != nullptr) {
            outcome.tables.push_back(recovery_table(base));
            outcome.figures.push_back(recovery_plot(base));
            add_recovery_findings(base, outcome.findings);
        }
        if (at(base, "far_control") != nullptr && at(base, "far_bounded") != nullptr) {
            outcome.tables.push_back(far_table(base));
            outcome.figures.push_back(far_plot(base));
            add_far_findings(base, outcome.findings);
        }
    }

    Table gains_table(const BaseModel& base, const PointResult& gains) const {
        Table table{concat(base.name, "_gains"),
                    concat(base.name, " model: the norm at once"),
                    {{"gains", "gains"},
                     {"loss_jump", "loss jump", "%+.3f"},
                     {"kl", "KL, mean head", "%.3f"},
                     {"kl_worst", "worst head", "%.3f"},
                     {"max_logit", "max logit", "%.1f"},
                     {"bound", "bound", "%.1f"},
                     {"grad_norm_ratio", "gradient norm, ratio", "%.2f"},
                     {"alone", "after training gains alone", "%+.3f"},
                     {"alone_max_logit", "max logit then", "%.1f"}},
                    {},
                    "Loss: of held-out text, less the plain model's. KL: of rows that gains were "
                    "not fitted on, nats. Max logit: over the calibration text; in the last "
                    "column over the steps of training."};
        const double loss = gains.number("loss");
        table.rows.push_back({std::string("none (plain)"), 0.0, Cell(), Cell(),
                              gains.number("max_logit"), Cell(), 1.0, Cell(), Cell()});
        for (const Estimator& estimator : kEstimators) {
            const auto number = [&](const char* what) {
                return gains.number(concat(estimator.name, ".", what));
            };
            const PointResult* alone = at(base, concat("alone_", estimator.name));
            table.rows.push_back({std::string(estimator.name), number("loss") - loss, number("kl"),
                                  number("kl_worst"), number("max_logit"), number("bound"),
                                  number("grad_norm") / gains.number("grad_norm"),
                                  alone ? Cell(alone->number("loss") - loss) : Cell(),
                                  alone ? Cell(alone->number("max_logit")) : Cell()});
        }
        return table;
    }

    // Steps whose excess the table shows.
    std::vector<std::int64_t> shown_steps() const {
        std::set<std::int64_t> steps = {rig_.fine_steps};
        for (const std::int64_t step : {5, 10, 20, 40, 80}) {
            if (step < rig_.fine_steps && step % rig_.eval_interval == 0) steps.insert(step);
        }
        return {steps.begin(), steps.end()};
    }

    Table recovery_table(const BaseModel& base) const {
        Table table{concat(base.name, "_recovery"),
                    concat(base.name, " model: excess over the re-warmed control, nats"),
                    {{"gains", "gains"}},
                    {},
                    concat("Validation loss less the control's, which trains on without a norm "
                           "from the same weights, moments, text and schedule. An annealed run "
                           "can recover from step ",
                           rig_.anneal, " on, where its norm is in.")};
        for (const std::int64_t step : shown_steps()) {
            table.columns.push_back({concat("step_", step), concat("step ", step), "%+.4f"});
        }
        for (const Column& column :
             {Column{"largest", "largest", "%+.4f"}, Column{"recovered", "recovered at", "%.0f"},
              Column{"area", "area", "%.3g"}, Column{"grad_norm", "first gradient norm", "%.3g"},
              Column{"max_logit", "last max logit", "%.1f"}}) {
            table.columns.push_back(column);
        }
        for (const Continuation& continuation : kContinuations) {
            const PointResult* run = at(base, continuation.name);
            if (run == nullptr || continuation.far || continuation.gains_alone) continue;
            const Recovery r = recovery(base, continuation.name);
            std::vector<Cell> row = {std::string(continuation.name)};
            for (const std::int64_t step : shown_steps()) {
                const auto found = std::find_if(
                    r.excess.begin(), r.excess.end(),
                    [&](const Point& p) { return static_cast<std::int64_t>(p.x) == step; });
                row.push_back(found == r.excess.end() ? Cell() : Cell(found->y));
            }
            row.push_back(r.largest());
            row.push_back(r.step < 0 ? Cell() : Cell(static_cast<double>(r.step)));
            row.push_back(r.area);
            row.push_back(run->number("grad_norm"));
            row.push_back(run->number("last_max_logit"));
            table.rows.push_back(std::move(row));
        }
        return table;
    }

    Figure recovery_plot(const BaseModel& base) const {
        LinePlot plot;
        plot.unit = "nats a byte";
        plot.format = "+.4f";
        for (const Continuation& continuation : kContinuations) {
            if (continuation.far || continuation.gains_alone || !continuation.gains) continue;
            const Recovery r = recovery(base, continuation.name);
            if (r.excess.empty()) continue;
            plot.series.push_back({std::string(continuation.name), series_color(plot.series.size()),
                                   r.excess, Series::Style::kMarked});
        }
        Figure figure = figure_of(concat("Excess over the control, ", base.name, " model"), plot);
        figure.wide = true;
        return figure;
    }

    Table far_table(const BaseModel& base) const {
        Table table{concat(base.name, "_far"),
                    concat(base.name, " model: ", rig_.long_steps, " further steps"),
                    {{"gains", "gains"},
                     {"loss", "loss", "%.4f"},
                     {"max_logit", "max logit in any step", "%.1f"},
                     {"last_max_logit", "in the last", "%.1f"},
                     {"bound", "bound at the end", "%.1f"}},
                    {}};
        for (const char* what : {"far_control", "far_bounded"}) {
            const PointResult& run = *at(base, what);
            const bool bounded = run.numbers.contains("bound");
            table.rows.push_back({std::string(what), run.number("loss"), run.number("max_logit"),
                                  run.number("last_max_logit"),
                                  bounded ? Cell(run.number("bound")) : Cell()});
        }
        return table;
    }

    Figure far_plot(const BaseModel& base) const {
        LinePlot plot;
        plot.unit = "largest logit of a step";
        plot.format = ".4g";
        plot.scale = LinePlot::Scale::kLog;
        const auto &control = at(base, "far_control")->curves.at("max_logit"),
                   &bounded = at(base, "far_bounded")->curves.at("max_logit");
        plot.series = {{"control", series_color(0), control},
                       {"with gains held to the bound", series_color(1), bounded}};
        if (!bounded.empty()) {
            plot.series.push_back(
                {"bound",
                 series_color(2),
                 {{bounded.front().x, rig_.bound}, {bounded.back().x, rig_.bound}},
                 Series::Style::kDashed});
        }
        Figure figure = figure_of(concat("Largest logit, ", base.name, " model"), plot);
        figure.wide = true;
        return figure;
    }

    Table failures_table() const {
        Table table{"failures", "points that failed", {{"point", "point"}, {"why", "why"}}, {}};
        for (const auto& [key, result] : results_) {
            if (!result.failure.empty()) table.rows.push_back({key, result.failure});
        }
        return table;
    }

    void add_gains_findings(const BaseModel& base,
                            const PointResult& gains,
                            std::vector<std::string>& findings) const {
        const bool hot = std::string_view(base.name) == "hot";
        const double allowed = hot ? kHotJump : kCoolJump, loss = gains.number("loss");
        const auto jump = [&](const char* of) { return gains.number(concat(of, ".loss")) - loss; };
        const double best = std::min(jump("kl_tied"), jump("kl_untied"));
        findings.push_back(concat(
            "The ", base.name, " model, loss ", format("%.3f", loss), ", largest logit ",
            format("%.1f", gains.number("max_logit")),
            hot ? goal(concat("above ", kHotLogit), gains.number("max_logit") > kHotLogit) : "",
            ": gains of 1 cost ", signed_nats(jump("ones")), " nats at once, the mean rms ",
            signed_nats(jump("mean_rms")), ", the KL fit ", signed_nats(jump("kl_tied")),
            " with gains tied in pairs and ", signed_nats(jump("kl_untied")), " without",
            goal(concat("at most ", signed_nats(allowed)), best <= allowed), "."));
    }

    void add_recovery_findings(const BaseModel& base, std::vector<std::string>& findings) const {
        const auto last = [&](const char* what) { return recovery(base, what).last(); };
        const double largest = recovery(base, "annealed").largest(), annealed = last("annealed");
        const double tied = last("kl_tied");
        findings.push_back(concat(
            "The ", base.name, " model trained on with the norm annealed over ", rig_.anneal,
            " steps is never more than ", format("%+.4f", largest),
            " nats above its re-warmed control",
            goal(concat("at most ", signed_nats(kAnnealedExcess)), largest <= kAnnealedExcess),
            "; after ", rig_.fine_steps, " steps it is ", format("%+.4f", annealed),
            " above, with the KL fit at once ", format("%+.4f", tied),
            goal(concat("within ", kFinalExcess), annealed <= kFinalExcess && tied <= kFinalExcess),
            ", with gains of 1 ", format("%+.4f", last("ones")), "."));
    }

    void add_far_findings(const BaseModel& base, std::vector<std::string>& findings) const {
        const PointResult &control = *at(base, "far_control"), &bounded = *at(base, "far_bounded");
        const double highest = bounded.number("max_logit"), before = control.number("max_logit");
        findings.push_back(concat(
            "Over ", rig_.long_steps, " further steps the ", base.name,
            " model with gains held to a bound of ", format("%g", rig_.bound),
            " has no logit above ", format("%.1f", highest),
            goal("under the bound", highest <= rig_.bound), ", where the control reaches ",
            format("%.1f", before),
            goal(concat("down by ", kLogitRatio, " or more"), before >= kLogitRatio * highest),
            "; its loss ends ", format("%+.4f", bounded.number("loss") - control.number("loss")),
            " against the control's."));
    }

    RetrofitRig rig_;
    std::map<std::string, PointResult> results_;
};

}  // namespace

std::unique_ptr<Study> make_retrofit() { return std::make_unique<Retrofit>(); }

}  // namespace evenkeel::study
