// The doctor among the subcommands of commands.h.
#pragma once

#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace evenkeel {

struct DoctorCommand {
    std::string config;  // --config FILE: of the run that is to be started; "": none
    std::vector<std::string> overrides;
    bool json = false;
};
// Prints what is wrong with how ranks were started (collective over world); whether nothing is.
bool run_doctor(const DoctorCommand& command, Communicator& world);

}  // namespace evenkeel
