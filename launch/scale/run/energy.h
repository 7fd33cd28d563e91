// What a machine says of the energy that it takes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "framework/device.h"

namespace evenkeel::scale {

// Counters of all processor packages (powercap of Linux: intel-rapl:N/energy_uj), and with GPUs of all of the machine's (NVML,
// nvmlDeviceGetTotalEnergyConsumption): what processes of others take is in them too. Processors are left out where their
// counters can't be read, as for users other than root. For one process of a machine.
class EnergyMeter {
  public:
    explicit EnergyMeter(Device device, const std::string& powercap = "/sys/class/powercap");
    ~EnergyMeter();
    EnergyMeter(const EnergyMeter&) = delete;
    EnergyMeter& operator=(const EnergyMeter&) = delete;

    // "2 processor packages, 8 GPUs"; "": nothing tells it.
    std::string sources() const;
    void start();
    // Joules since start(); nothing where sources() is "", or a counter has gone. A counter may pass its end once.
    std::optional<double> joules() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace evenkeel::scale
