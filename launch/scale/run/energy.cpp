#include "launch/scale/run/energy.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <vector>

#include "framework/error.h"

namespace evenkeel::scale {
namespace {

namespace fs = std::filesystem;

std::optional<double> number_in(const fs::path& file) {
    std::ifstream stream(file);
    double value = 0.0;
    if (!(stream >> value) || value < 0.0) return std::nullopt;
    return value;
}

struct Package {
    fs::path counter;
    double range = 0.0;  // microjoules after which it begins anew
    std::optional<double> begin;
};

// Zones are intel-rapl:N; their parts, intel-rapl:N:M, are in them.
std::vector<Package> packages_in(const std::string& directory) {
    std::vector<Package> packages;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string(), start = "intel-rapl:";
        if (!name.starts_with(start)) continue;
        const std::string number = name.substr(start.size());
        const bool is_zone =
            !number.empty() && std::all_of(number.begin(), number.end(),
                                           [](unsigned char c) { return std::isdigit(c) != 0; });
        if (!is_zone || !number_in(entry.path() / "energy_uj")) continue;
        packages.push_back({entry.path() / "energy_uj",
                            number_in(entry.path() / "max_energy_range_uj").value_or(0.0),
                            {}});
    }
    return packages;
}

// NVML, where its library is.
class Nvml {
  public:
    Nvml() {
        library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (library_ == nullptr) return;
        const auto init = find<int (*)()>("nvmlInit_v2");
        const auto count = find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
        const auto handle = find<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
        energy_ = find<int (*)(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
        unsigned devices = 0;
        if (init == nullptr || count == nullptr || handle == nullptr || energy_ == nullptr) return;
        if (init() != 0) return;
        if (count(&devices) != 0) return;
        for (unsigned i = 0; i < devices; ++i) {
            void* device = nullptr;
            if (handle(i, &device) == 0) devices_.push_back(device);
        }
        if (!millijoules()) devices_.clear();
    }
    ~Nvml() {
        if (library_ != nullptr) ::dlclose(library_);
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    std::size_t devices() const { return devices_.size(); }
    std::optional<double> millijoules() const {
        double sum = 0.0;
        for (void* device : devices_) {
            unsigned long long value = 0;
            if (energy_(device, &value) != 0) return std::nullopt;
            sum += static_cast<double>(value);
        }
        return sum;
    }

  private:
    template <typename F>
    F find(const char* name) const {
        return reinterpret_cast<F>(::dlsym(library_, name));
    }
    void* library_ = nullptr;
    int (*energy_)(void*, unsigned long long*) = nullptr;
    std::vector<void*> devices_;
};

std::string devices_text(std::size_t count, const char* one, const char* more) {
    return concat(count, " ", count == 1 ? one : more);
}

}  // namespace

struct EnergyMeter::State {
    std::vector<Package> packages;
    std::optional<Nvml> gpus;
    std::optional<double> gpus_begin;
};

EnergyMeter::EnergyMeter(Device device, const std::string& powercap)
    : state_(std::make_unique<State>()) {
    state_->packages = packages_in(powercap);
    if (device == Device::kCuda) state_->gpus.emplace();
    if (state_->gpus && state_->gpus->devices() == 0) state_->gpus.reset();
    // Processors alone would be the smaller part.
    if (device == Device::kCuda && !state_->gpus) state_->packages.clear();
}

EnergyMeter::~EnergyMeter() = default;

std::string EnergyMeter::sources() const {
    std::string text;
    if (!state_->packages.empty()) {
        text = devices_text(state_->packages.size(), "processor package", "processor packages");
    }
    if (state_->gpus) {
        text +=
            concat(text.empty() ? "" : ", ", devices_text(state_->gpus->devices(), "GPU", "GPUs"));
    }
    return text;
}

void EnergyMeter::start() {
    for (Package& package : state_->packages) package.begin = number_in(package.counter);
    if (state_->gpus) state_->gpus_begin = state_->gpus->millijoules();
}

std::optional<double> EnergyMeter::joules() const {
    if (sources().empty()) return std::nullopt;
    double sum = 0.0;
    for (const Package& package : state_->packages) {
        const std::optional<double> now = number_in(package.counter);
        if (!now || !package.begin) return std::nullopt;
        const double passed = *now - *package.begin;
        if (passed < 0.0 && package.range <= 0.0) return std::nullopt;
        sum += 1e-6 * (passed < 0.0 ? passed + package.range : passed);
    }
    if (state_->gpus) {
        const std::optional<double> now = state_->gpus->millijoules();
        if (!now || !state_->gpus_begin) return std::nullopt;
        sum += 1e-3 * (*now - *state_->gpus_begin);
    }
    return sum;
}

}  // namespace evenkeel::scale
