// Pictures of tables for TensorBoard, one pixel a cell: TensorBoard draws them as large squares.
#pragma once

#include <cstdint>
#include <string>

#include "framework/training/metrics.h"

namespace evenkeel {

// A PNG (ISO/IEC 15948) of table.columns x table.rows pixels. Colours go from dark violet at `low` through green
// to yellow at `high`; what lies beyond has the colour of the nearer end, what is no finite number is grey.
// Throws kInvalidArgument for a table without cells.
std::string heat_map_png(const MetricTable& table, float low, float high);

}  // namespace evenkeel
