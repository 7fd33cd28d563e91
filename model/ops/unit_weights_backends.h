// The functions of unit_weights.h on each device.
#pragma once

#include "model/ops/unit_weights.h"

namespace evenkeel {
namespace cpu {
// normalize: or the values alone.
void refresh_weights(const UnitWork& work, bool normalize);
void convert_gradients(const UnitWork& work);
}  // namespace cpu
namespace cuda {
// normalize: or the values alone.
void refresh_weights(const UnitWork& work, bool normalize);
void convert_gradients(const UnitWork& work);
}  // namespace cuda
}  // namespace evenkeel
