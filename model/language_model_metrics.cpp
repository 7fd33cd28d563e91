// What records say of a language model.
#include <utility>

#include "model/blocks/decoder_block.h"
#include "model/language_model.h"
#include "model/rules/weight_rule.h"
#include "model/telemetry/head_statistics.h"
#include "model/telemetry/head_weights.h"

namespace evenkeel {

double LanguageModel::take_exposed_seconds() {
    const bool timed = !std::exchange(replayed_, false);
    const double seconds =
        grid_.tensor().take_exposed_seconds() + grid_.data().take_exposed_seconds();
    const double replicas =
        grid_.kv_replicas(config_.attention.num_kv_heads).take_exposed_seconds();
    return timed ? seconds + replicas : 0.0;
}

std::vector<MetricTable> LanguageModel::head_metrics() {
    if (statistics_ == nullptr) return {};
    std::vector<MetricTable> tables = statistics_->reduce(grid_);
    if (tables.empty()) return tables;
    std::vector<LayerWeights> layers;
    for (const auto& block : blocks_) layers.push_back(block->weights());
    for (MetricTable& table :
         head_weight_tables(grid_, config_.layer_attentions(), layers, lambda())) {
        tables.push_back(std::move(table));
    }
    for (const auto& rule : rules_) {
        for (MetricTable& table : rule->head_metrics()) tables.push_back(std::move(table));
    }
    return tables;
}

double LanguageModel::lambda() const {
    if (!lambda_.defined()) return 1.0;
    const Tensor lambda = lambda_.to(Device::kCpu);
    return *lambda.data<float>();
}

std::vector<std::pair<std::string, double>> LanguageModel::scalar_metrics() {
    if (!lambda_.defined()) return {};
    return {{"qk_norm_lambda", lambda()}};
}

double LanguageModel::flops_per_token(std::int64_t seq_len) const {
    return ::evenkeel::flops_per_token(config_, seq_len);
}

}  // namespace evenkeel
