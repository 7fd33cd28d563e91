// Published results of training runs, and what the model says about them: how far it may be believed.
//
// scaling/published_results.json holds the rows: model, ranks, batch, what the program did, what was measured and where
// that stands. A row says nothing about rates; those are the cluster's and the same for all rows (Hardware, Shares).
#pragma once

#include <string>
#include <vector>

#include "scaling/step_model.h"

namespace evenkeel::scaling {

// What a source measured, as it printed it; one of these is not 0.
struct Measured {
    double step_seconds = 0.0;
    double tokens_per_second_per_gpu = 0.0;
    // With operations counted as Narayanan et al. 2021, eq. 3, where full recomputation is in:
    // 96 B s l h^2 (1 + s / 6h + V / 16 l h) a step.
    double megatron_teraflops_per_gpu = 0.0;
    // With the model's operations, causal attention counted once (flops_per_token).
    double model_teraflops_per_gpu = 0.0;
    void visit_fields(ConfigVisitor& v);
};

struct PublishedRow {
    std::string name, source, note;
    std::string hardware;  // a name of load_hardware
    StepPlan plan;
    Measured measured;
    void visit_fields(ConfigVisitor& v);
    double step_seconds() const;  // from what was measured
};

// All rows, in the order of the file. Throws kConfig naming the row.
std::vector<PublishedRow> published_rows();
// From JSON text: {"rows": [..]}, each with the fields of PublishedRow.
std::vector<PublishedRow> parse_published(const std::string& text);

struct Comparison {
    PublishedRow row;
    StepTime predicted;
    double published = 0.0;  // seconds
    double error() const { return predicted.total() / published - 1.0; }
};
std::vector<Comparison> compare_published(const Shares& shares);
// Of the errors' sizes.
double median_error(const std::vector<Comparison>& comparisons);
double largest_error(const std::vector<Comparison>& comparisons);

}  // namespace evenkeel::scaling
