#include "scaling/published.h"

#include <algorithm>
#include <cmath>

#include "framework/error.h"
#include "framework/json.h"
#include "scaling/built_in.h"

namespace evenkeel::scaling {
namespace {

std::vector<double> sizes_of_errors(const std::vector<Comparison>& comparisons) {
    std::vector<double> errors;
    for (const Comparison& comparison : comparisons) errors.push_back(std::abs(comparison.error()));
    std::sort(errors.begin(), errors.end());
    return errors;
}

}  // namespace

void Measured::visit_fields(ConfigVisitor& v) {
    v.field("step_seconds", step_seconds, "of a step");
    v.field("tokens_per_second_per_gpu", tokens_per_second_per_gpu, "tokens");
    v.field("megatron_teraflops_per_gpu", megatron_teraflops_per_gpu,
            "operations as Narayanan et al. 2021 count them");
    v.field("model_teraflops_per_gpu", model_teraflops_per_gpu, "operations of the model");
}

void PublishedRow::visit_fields(ConfigVisitor& v) {
    v.field("name", name, "of the row");
    v.field("source", source, "where it stands");
    v.field("note", note, "what the source leaves open, and what was taken");
    v.field("hardware", hardware, "the cluster");
    v.section("model", plan.model, "the decoder");
    v.section("layout", plan.layout, "how ranks share the work");
    v.section("software", plan.software, "what the program does");
    v.section("measured", measured, "what was measured");
}

double PublishedRow::step_seconds() const {
    const double tokens = plan.layout.tokens(), gpus = static_cast<double>(plan.layout.gpus());
    if (measured.step_seconds > 0.0) return measured.step_seconds;
    if (measured.tokens_per_second_per_gpu > 0.0) {
        return tokens / (measured.tokens_per_second_per_gpu * gpus);
    }
    constexpr double kTera = 1e12;
    if (measured.model_teraflops_per_gpu > 0.0) {
        return flops_per_token(plan.model, plan.layout.seq_len) * tokens /
               (measured.model_teraflops_per_gpu * kTera * gpus);
    }
    EVENKEEL_CHECK_CODE(measured.megatron_teraflops_per_gpu > 0.0, ErrorCode::kConfig, "scale",
                        "row ", name, ": measured: got nothing, want one of its fields");
    const auto s = static_cast<double>(plan.layout.seq_len);
    const auto l = static_cast<double>(plan.model.num_layers);
    const auto h = static_cast<double>(plan.model.width);
    const auto V = static_cast<double>(plan.model.vocab_size);
    return 96.0 * tokens * l * h * h * (1.0 + s / (6.0 * h) + V / (16.0 * l * h)) /
           (measured.megatron_teraflops_per_gpu * kTera * gpus);
}

std::vector<PublishedRow> parse_published(const std::string& text) {
    const auto json = nlohmann::json::parse(text, nullptr, false, true);
    EVENKEEL_CHECK_CODE(json.is_object() && json.contains("rows") && json["rows"].is_array(),
                        ErrorCode::kConfig, "scale",
                        "published results: want a JSON object with a list of rows");
    std::vector<PublishedRow> rows;
    for (const auto& row : json["rows"]) {
        PublishedRow& parsed = rows.emplace_back();
        parse_config([&](ConfigVisitor& v) { parsed.visit_fields(v); }, row.dump(),
                     concat("published results, row ", rows.size()));
    }
    return rows;
}

std::vector<PublishedRow> published_rows() {
    return parse_published(std::string(kPublishedResults.text, kPublishedResults.size));
}

std::vector<Comparison> compare_published(const Shares& shares) {
    std::vector<Comparison> comparisons;
    for (PublishedRow& row : published_rows()) {
        const Hardware hardware = load_hardware(row.hardware);
        const StepTime predicted = predict_step(hardware, shares, row.plan);
        const double published = row.step_seconds();
        comparisons.push_back({std::move(row), predicted, published});
    }
    return comparisons;
}

double median_error(const std::vector<Comparison>& comparisons) {
    const std::vector<double> errors = sizes_of_errors(comparisons);
    const std::size_t half = errors.size() / 2;
    return errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2.0;
}

double largest_error(const std::vector<Comparison>& comparisons) {
    return sizes_of_errors(comparisons).back();
}

}  // namespace evenkeel::scaling
