// The results of a scaling study as lines of a table.
#include <cmath>
#include <functional>

#include "framework/error.h"
#include "launch/scale/run/report.h"
#include "launch/scale/text.h"

namespace evenkeel::scale {
namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"') out += '"';
        out += c == '\n' || c == '\r' ? ' ' : c;
    }
    return out + "\"";
}

std::string value(double v) { return std::isfinite(v) ? number("%.9g", v) : ""; }

struct Column {
    const char* name;
    std::function<std::string(const Result&)> text;
    bool of_measured = true;  // empty where there is no measurement
};

const std::vector<Column>& columns() {
    static const std::vector<Column> all = {
        {"point", [](const Result& r) { return r.key; }, false},
        {"status",
         [](const Result& r) {
             return std::string(!r.failure.empty() ? "failed" : r.is_wrong() ? "wrong" : "ok");
         },
         false},
        {"ranks", [](const Result& r) { return std::to_string(r.ranks); }, false},
        {"tensor_parallel",
         [](const Result& r) { return std::to_string(r.config.parallel.tensor_parallel); }, false},
        {"data_parallel",
         [](const Result& r) { return std::to_string(r.config.parallel.data_parallel); }, false},
        {"seq_len", [](const Result& r) { return std::to_string(r.config.trainer.seq_len); },
         false},
        {"batch_size", [](const Result& r) { return std::to_string(r.config.trainer.batch_size); },
         false},
        {"micro_batch_size",
         [](const Result& r) { return std::to_string(r.config.trainer.micro_batch_size); }, false},
        {"oversubscribed",
         [](const Result& r) { return std::string(r.measured->oversubscribed ? "1" : "0"); }},
        {"tokens_per_second",
         [](const Result& r) { return value(r.measured->tokens_per_second()); }},
        {"step_seconds", [](const Result& r) { return value(r.measured->seconds); }},
        {"first_quartile", [](const Result& r) { return value(r.measured->first_quartile); }},
        {"third_quartile", [](const Result& r) { return value(r.measured->third_quartile); }},
        {"computing_seconds",
         [](const Result& r) {
             return r.measured->communication ? value(r.measured->computing) : "";
         }},
        {"exposed_seconds",
         [](const Result& r) {
             return r.measured->communication ? value(r.measured->exposed()) : "";
         }},
        {"hidden_seconds",
         [](const Result& r) {
             return r.measured->communication ? value(r.measured->hidden()) : "";
         }},
        {"speed_up", [](const Result& r) { return value(r.speed_up); }},
        {"efficiency", [](const Result& r) { return value(r.efficiency); }},
        {"peak_flops_of_a_rank",
         [](const Result& r) { return r.peak_flops > 0.0 ? value(r.peak_flops) : ""; }},
        {"model_flops_utilisation",
         [](const Result& r) { return r.peak_flops > 0.0 ? value(r.utilisation) : ""; }},
        {"peak_memory_bytes", [](const Result& r) { return value(r.measured->peak_memory); }},
        {"first_loss", [](const Result& r) { return value(r.measured->losses.front()); }},
        {"last_loss", [](const Result& r) { return value(r.measured->losses.back()); }},
        {"loss_difference",
         [](const Result& r) { return r.loss_reference.empty() ? "" : value(r.loss_difference); }},
        {"joules_per_token",
         [](const Result& r) {
             return r.measured->joules_per_token ? value(*r.measured->joules_per_token) : "";
         }},
        {"modelled_step_seconds",
         [](const Result& r) { return r.modelled ? value(r.modelled->total()) : ""; }},
        {"modelled_computing_seconds",
         [](const Result& r) { return r.modelled ? value(r.modelled->computing()) : ""; }},
        {"modelled_exposed_seconds",
         [](const Result& r) {
             return r.modelled ? value(r.modelled->tensor + r.modelled->data) : "";
         }},
        {"failure", [](const Result& r) { return r.failure.empty() ? "" : quoted(r.failure); },
         false},
    };
    return all;
}

}  // namespace

std::string to_csv(const std::vector<Result>& results) {
    std::string csv;
    const auto add_line = [&](const std::function<std::string(const Column&)>& text) {
        std::string line;
        bool first = true;
        for (const Column& column : columns()) {
            line += (first ? "" : ",") + text(column);
            first = false;
        }
        csv += line + "\n";
    };
    add_line([](const Column& column) { return std::string(column.name); });
    for (const Result& result : results) {
        add_line([&](const Column& column) {
            return column.of_measured && !result.measured ? "" : column.text(result);
        });
    }
    return csv;
}

}  // namespace evenkeel::scale
