// The alarms of a training run: which numbers are watched by default, and from which values on.
// docs/telemetry.md tells where the values are from.
#pragma once

#include <vector>

#include "framework/training/alarm.h"
#include "model/model_config.h"

namespace evenkeel {

struct AlarmConfig {
    // Largest logit of a head, without cap; where q and k are normalised the bound is watched instead.
    AlarmSetting max_logit{AlarmAction::kWarn, 100.0, 1};
    AlarmSetting max_logit_critical{AlarmAction::kEnd, 1e4, 1};
    AlarmSetting logit_bound{AlarmAction::kWarn, 100.0, 1};
    AlarmSetting logit_growth{AlarmAction::kWarn, 0.25, 10};  // of the steps left
    AlarmSetting entropy{AlarmAction::kWarn, 0.1, 5};         // of the share, mean of a layer
    AlarmSetting saturation{AlarmAction::kWarn, 0.5, 5};      // of the rows, mean of a layer
    AlarmSetting gain_drift{AlarmAction::kWarn, 4.0, 1};
    AlarmSetting small_rows{AlarmAction::kWarn, 10.0, 3};    // times eps: q and k before the norm
    AlarmSetting gradient_norm{AlarmAction::kWarn, 6.0, 1};  // standard deviations
    void visit_fields(ConfigVisitor& v);
    void validate() const;  // throws kConfig
};

// Those that make sense for the model.
std::vector<AlarmRule> alarm_rules(const AlarmConfig& config, const ModelConfig& model);

}  // namespace evenkeel
