// How the commands of `evenkeel data` are typed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "launch/commands.h"

namespace evenkeel {

// The commands and `run` must outlive the program's parsing; `run` is set to what has been asked for.
void add_data(CLI::App& program,
              DataBuildCommand& build,
              DataInspectCommand& inspect,
              std::function<void(Communicator&)>& run);

}  // namespace evenkeel
