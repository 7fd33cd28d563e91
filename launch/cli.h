// How commands are typed: what cli.cpp and the files of single commands share. Commands and the choice must outlive
// the program's parsing; the choice is set to what has been asked for.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "launch/commands.h"
#include "launch/doctor/command.h"

namespace evenkeel {

// A command line, parsed.
struct Choice {
    std::function<void(Communicator&)> run;
    int status = 0;  // the program's, when that returns
};

inline void add_overrides(CLI::App& app, std::vector<std::string>& overrides) {
    app.add_option("--set", overrides, "Override one setting: path.to.key=value (repeatable)")
        ->type_name("PATH=VALUE")
        ->allow_extra_args(false);
}

struct BenchCommands {
    BenchCommand all;
    BenchAttentionCommand attention;
    BenchStepCommand step;
    std::string device = name_of(Device::kCpu), type = "bf16";  // as typed
    bool forward = false;
};
void add_bench(CLI::App& program, BenchCommands& commands, Choice& choice);
void add_data(CLI::App& program,
              DataBuildCommand& build,
              DataInspectCommand& inspect,
              Choice& choice);
void add_doctor(CLI::App& program, DoctorCommand& command, Choice& choice);
void add_retrofit(CLI::App& program, RetrofitCommand& command, Choice& choice);

}  // namespace evenkeel
