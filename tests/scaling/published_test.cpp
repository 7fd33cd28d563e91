// The model of a step against published results.
#include "scaling/published.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

const PublishedRow& row_named(const std::vector<PublishedRow>& rows, const std::string& name) {
    for (const PublishedRow& row : rows) {
        if (row.name == name) return row;
    }
    throw std::runtime_error("no row " + name);
}

TEST(PublishedTest, TheMedianErrorIsAtMost15PercentAndNoneAbove35) {
    const std::vector<Comparison> comparisons = compare_published({});
    EXPECT_GE(comparisons.size(), 12u);
    EXPECT_LE(median_error(comparisons), 0.15);
    for (const Comparison& comparison : comparisons) {
        EXPECT_LE(std::abs(comparison.error()), 0.35)
            << comparison.row.name << ": predicted " << comparison.predicted.total()
            << " s, published " << comparison.published << " s";
    }
}

TEST(PublishedTest, EachRowHasANameOfItsOwnASourceAndNoRatesOfItsOwn) {
    std::set<std::string> names;
    for (const PublishedRow& row : published_rows()) {
        EXPECT_TRUE(names.insert(row.name).second) << row.name;
        EXPECT_FALSE(row.source.empty()) << row.name;
        EXPECT_FALSE(row.note.empty()) << row.name;
        const Hardware hardware = load_hardware(row.hardware);
        validate(row.plan, hardware.gpus_per_node);
        // Nobody has measured more than the peak.
        EXPECT_LT(utilisation(hardware, row.plan, row.step_seconds()), 0.75) << row.name;
    }
}

TEST(PublishedTest, ModelsHaveTheSizesOfTheirNames) {
    const std::vector<PublishedRow> rows = published_rows();
    const auto parameters = [&](const char* name) {
        return static_cast<double>(parameter_count(row_named(rows, name).plan.model)) / 1e9;
    };
    EXPECT_NEAR(parameters("Megatron-LM 2021 1.7B on 32"), 1.7, 0.1);
    EXPECT_NEAR(parameters("Megatron-LM 2021 145.6B on 1536"), 145.6, 1.0);
    EXPECT_NEAR(parameters("Megatron-LM 2021 1008B on 3072"), 1008.0, 3.0);
    EXPECT_NEAR(parameters("Llama 3 405B on 8192"), 405.8, 0.5);
    EXPECT_NEAR(parameters("torchtitan 8B on 8, eager"), 8.03, 0.01);
    EXPECT_NEAR(parameters("llm-foundry 70b on 64 H100"), 64.86, 0.03);
    EXPECT_NEAR(parameters("llm.c 1558M on 8"), 1.558, 0.01);
}

TEST(PublishedTest, WhatWasMeasuredBecomesSecondsByTheSourcesOwnFormula) {
    const std::vector<PublishedRow> rows = published_rows();
    // Korthikanti et al. print 51.4 % of 312 TFLOP/s for 13.75 s:
    // 72 B s l h^2 (1 + s / 6h + V / 12 l h).
    const PublishedRow& gpt3 =
        row_named(rows, "Megatron-LM 2022 175B on 64, sequence parallel, selective");
    const double B = 64, s = 2048, l = 96, h = 12288, V = 51200;
    const double flops = 72.0 * B * s * l * h * h * (1.0 + s / (6.0 * h) + V / (12.0 * l * h));
    EXPECT_NEAR(flops / (64.0 * 312e12 * gpt3.step_seconds()), 0.514, 0.001);
    // Narayanan et al. print 502.0 PFLOP/s in all for a trillion parameters on 3072 GPUs.
    const PublishedRow& trillion = row_named(rows, "Megatron-LM 2021 1008B on 3072");
    const double L = 128, H = 25600, batch = 3072;
    const double counted =
        96.0 * batch * s * L * H * H * (1.0 + s / (6.0 * H) + V / (16.0 * L * H));
    EXPECT_NEAR(counted / trillion.step_seconds(), 502e15, 2e15);
    // 5762 tokens/s a GPU: 2 sequences of 8192.
    EXPECT_NEAR(row_named(rows, "torchtitan 8B on 8, eager").step_seconds(), 2.0 * 8192.0 / 5762.0,
                1e-9);
}

TEST(PublishedTest, ABadRowIsNamed) {
    const auto complaint = [](const char* text) -> std::string {
        try {
            for (const PublishedRow& row : parse_published(text)) row.step_seconds();
            return "";
        } catch (const Error& error) {
            return error.what();
        }
    };
    EXPECT_NE(complaint("[]").find("want a JSON object with a list of rows"), std::string::npos);
    EXPECT_NE(complaint(R"({"rows": [{"layout": {"tensor_paralel": 2}}]})")
                  .find("published results, row 1: layout.tensor_paralel"),
              std::string::npos);
    EXPECT_NE(complaint(R"({"rows": [{"name": "x"}]})").find("row x: measured: got nothing"),
              std::string::npos);
}

}  // namespace
}  // namespace evenkeel::scaling
