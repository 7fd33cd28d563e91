// PTX that runs in place of the program's own: how tests/mutations/ seeds faults without building
// a program for each.
#pragma once

#include <string>
#include <string_view>

namespace gpu_emulator {

// The replacement, as it would stand in the unit of the text: nvcc names anonymous namespaces by
// the path of the source, and host code knows the program's own names. Empty if it does not fit: it
// fits where the text has all its kernels.
std::string fit_replacement(std::string_view replacement, std::string_view text);

// What the file EVENKEEL_EMULATOR_PTX has for a unit with this text, announced on stderr when it
// fits; else the text. An unreadable file is reported.
std::string replaced_ptx(std::string_view text);

}  // namespace gpu_emulator
