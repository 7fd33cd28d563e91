// What the device under test can run: the emulator what its table of forms has, a GPU what its age
// allows.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {

bool can_run(const Case& c);
std::vector<std::string> known_forms();  // of the emulator; none on a GPU

}  // namespace instructions
