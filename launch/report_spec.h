// What the Vega specifications of reports have in common. For files that include JSON anyway.
#pragma once

#include <string>

#include "framework/json.h"

namespace evenkeel {

// Five digits are more than a plot can show, and keep the page small; null for what is not finite.
nlohmann::ordered_json rounded(double value);
nlohmann::ordered_json signal(const std::string& expression);
// What every plot shares: fills its container's width, redraws when the window changes.
nlohmann::ordered_json base_spec(int height);

}  // namespace evenkeel
