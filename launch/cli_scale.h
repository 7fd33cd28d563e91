// How the commands of `evenkeel scale` are typed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "launch/scale/command.h"
#include "parallel/communicator.h"

namespace evenkeel {

struct ScaleCommands {
    ScaleCommand plan, search;
    ScaleMeasureCommand measure;
    ScaleValidateCommand validate;
    ScaleHardwareCommand hardware;
};
// The commands and `run` must outlive the program's parsing; `run` is set to what has been asked for.
void add_scale(CLI::App& program, ScaleCommands& commands, std::function<void(Communicator&)>& run);

}  // namespace evenkeel
