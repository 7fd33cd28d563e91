// What records say of a language model.
#include <utility>

#include "model/blocks/decoder_block.h"
#include "model/language_model.h"
#include "model/rules/weight_rule.h"
#include "model/telemetry/head_statistics.h"
#include "model/telemetry/head_weights.h"

namespace evenkeel {

std::vector<CommunicationPart> LanguageModel::take_communication() {
    const bool timed = !std::exchange(replayed_, false);
    std::vector<CommunicationPart> parts;
    const auto take = [&](const char* group, Communicator& communicator) {
        const CommunicationTimes times = communicator.take_times();
        if (communicator.size() == 1) return;
        for (std::size_t i = 0; i < times.size(); ++i) {
            if (times[i].exposed == 0.0 && times[i].hidden == 0.0) continue;
            parts.push_back(
                {group, name_of(static_cast<Collective>(i)), times[i].exposed, times[i].hidden});
        }
    };
    take("tensor", grid_.tensor());
    take("data", grid_.data());
    take("kv_replicas", grid_.kv_replicas(config_.attention.num_kv_heads));
    if (!timed) parts.clear();
    return parts;
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
