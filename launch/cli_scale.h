// How the commands of `evenkeel scale` are typed.
#pragma once

#include "launch/cli.h"
#include "launch/scale/command.h"

namespace evenkeel {

struct ScaleCommands {
    ScaleCommand plan, search;
    ScaleMeasureCommand measure;
    ScaleValidateCommand validate;
    ScaleHardwareCommand hardware;
    ScaleRunCommand run;
    ScalePointCommand point;
    ScaleReportCommand report;
};
void add_scale(CLI::App& program, ScaleCommands& commands, Choice& choice);

}  // namespace evenkeel
