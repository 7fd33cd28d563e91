#include "launch/scale/run/results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/hash.h"
#include "launch/scale/text.h"
#include "scaling/measured_network.h"

namespace evenkeel::scale {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::string& file) {
    const Json json = Json::parse(read_file(file), nullptr, false);
    EVENKEEL_CHECK_CODE(json.is_object(), ErrorCode::kIo, "scale run", file,
                        ": is not a point's result; remove it");
    return json;
}

Rates rates_from(const Json& json) {
    Rates rates;
    rates.yardstick_flops = json.at("yardstick_flops");
    rates.product_flops = json.at("product_flops");
    rates.attention_forward_flops = json.at("attention_forward_flops");
    rates.attention_backward_flops = json.at("attention_backward_flops");
    rates.memory_bytes = json.at("memory_bytes");
    return rates;
}

Measured measured_from(const Json& json) {
    Measured m;
    m.device = json.at("device");
    m.nodes = json.at("nodes");
    m.threads = json.at("threads");
    m.oversubscribed = json.at("oversubscribed");
    m.losses = json.at("losses").get<std::vector<double>>();
    m.tokens = json.at("tokens");
    const Json& seconds = json.at("step_seconds");
    m.seconds = seconds.at("median");
    m.first_quartile = seconds.at("first_quartile");
    m.third_quartile = seconds.at("third_quartile");
    m.peak_memory = json.at("peak_memory_bytes");
    if (!json.at("communication").is_null()) {
        m.communication.emplace();
        for (const Json& part : json.at("communication")) {
            m.communication->push_back({part.at("group"), part.at("operation"),
                                        part.at("exposed_seconds"), part.at("hidden_seconds")});
        }
        m.computing = json.at("computing_seconds");
    }
    if (!json.at("energy").is_null()) {
        m.joules_per_token = json.at("energy").at("joules_per_token").get<double>();
        m.energy_of = json.at("energy").at("of");
    }
    if (!json.at("rates").is_null()) m.rates = rates_from(json.at("rates"));
    return m;
}

// What decides a point's losses: everything but how ranks share the work. In one order of keys, whatever the file's.
std::string losses_key(const Result& result) {
    nlohmann::json settings = nlohmann::json::parse(result.settings);
    settings.erase("ranks");
    settings.erase("threads");
    settings.erase("warmup_steps");
    nlohmann::json& config = settings["config"];
    config.erase("parallel");
    config.erase("cuda_graphs");
    config["model"].erase("recompute");
    config["trainer"].erase("micro_batch_size");
    return settings.dump();
}

// What decides which points are sizes of one series: all but ranks, groups and the batch.
std::string series_key(const Result& result) {
    nlohmann::json settings = nlohmann::json::parse(losses_key(result));
    settings["config"]["trainer"].erase("batch_size");
    return settings.dump();
}

// The result with fewest ranks, among those with fewest the one with the smallest groups, of each kind.
template <typename Key>
std::map<std::string, const Result*> references(const std::vector<Result>& results, Key&& key_of) {
    const auto rank = [](const Result& r) {
        return std::pair{r.ranks, r.config.parallel.tensor_parallel};
    };
    std::map<std::string, const Result*> all;
    for (const Result& result : results) {
        if (!result.measured) continue;
        const Result*& best = all[key_of(result)];
        if (best == nullptr || rank(result) < rank(*best)) best = &result;
    }
    return all;
}

// Over the first steps: rounding grows with their number, and what is wrong is so from the first ones on.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    constexpr std::size_t kCompared = 50;
    double largest = 0.0;
    for (std::size_t i = 0; i < std::min({a.size(), b.size(), kCompared}); ++i) {
        const double difference = std::abs(a[i] - b[i]) / std::abs(b[i]);
        if (!(difference <= largest)) largest = difference;  // NaN stays
    }
    return largest;
}

// This machine as the model of a step sees it, by what its ranks did while all of them computed.
scaling::Hardware hardware_of(const Rates& rates, std::int64_t ranks_per_node) {
    constexpr double kTera = 1e12, kGiga = 1e9, kEnough = 1e6;
    scaling::Hardware hardware;
    hardware.name = "measured";
    hardware.peak_teraflops = rates.yardstick_flops / kTera;
    hardware.matmul_teraflops = rates.product_flops / kTera;
    hardware.attention_forward_teraflops = rates.attention_forward_flops / kTera;
    hardware.attention_backward_teraflops = rates.attention_backward_flops / kTera;
    hardware.native_attention_forward_teraflops = hardware.attention_forward_teraflops;
    hardware.native_attention_backward_teraflops = hardware.attention_backward_teraflops;
    hardware.memory_gib = kEnough;
    hardware.memory_gigabytes_per_second = rates.memory_bytes / kGiga;
    hardware.design_watts = hardware.limit_watts = 1.0;
    hardware.gpus_per_node = ranks_per_node;
    hardware.node_gigabytes_per_second = hardware.network_gigabytes_per_second = kEnough;
    hardware.host_gigabytes_per_second = kEnough;
    return hardware;
}

std::optional<scaling::StepTime> model_of(const RunPlan& plan,
                                          const std::string& network,
                                          const Result& result) {
    const Measured& m = *result.measured;
    std::optional<scaling::MeasuredNetwork> measured;
    if (std::filesystem::exists(network)) measured = scaling::load_measured_network(network);
    // One that its own sizes do not follow is no model of others.
    if (measured && measured->error > scaling::kMostFitError) measured.reset();
    const bool has_network = measured.has_value();
    scaling::Hardware hardware;
    scaling::Shares shares;
    scaling::StepPlan step = plan_of(result.config, result.ranks);
    if (m.device == "cpu") {
        // The model counts in bf16. Ranks that take turns are none of its ranks.
        if (!m.rates || m.oversubscribed || result.config.model.type != ComputeType::kBf16 ||
            (result.ranks > 1 && !has_network)) {
            return std::nullopt;
        }
        // Rates and network are what was reached; nothing runs beside computing.
        shares = {1.0, 1.0, 1.0, 1.0, 0.0, 0.0};
        step.software.overlap_gradients = false;
        step.software.logarithmic = false;
        hardware = hardware_of(*m.rates, (result.ranks + m.nodes - 1) / m.nodes);
    } else {
        if (plan.hardware.empty()) return std::nullopt;
        hardware = scaling::load_hardware(plan.hardware);
    }
    if (has_network) scaling::use_network(*measured, shares, hardware);
    try {
        return scaling::predict_step(hardware, shares, step);
    } catch (const Error&) {
        return std::nullopt;  // such as groups that nodes do not divide
    }
}

void set_utilisation(const RunPlan& plan, Result& result) {
    const Measured& m = *result.measured;
    if (!plan.hardware.empty()) {
        result.peak_flops = 1e12 * scaling::load_hardware(plan.hardware).peak_teraflops;
        result.peak_source = concat(plan.hardware, ", peak_teraflops");
    } else if (m.rates) {
        result.peak_flops = m.rates->yardstick_flops;
        result.peak_source = "product of 1536 x 1536 matrices, measured on all ranks at a time";
    }
    if (result.peak_flops <= 0.0) return;
    result.utilisation = flops_per_token(result.config.model, result.config.trainer.seq_len) *
                         m.tokens_per_second() /
                         (static_cast<double>(result.ranks) * result.peak_flops);
}

}  // namespace

double Measured::exposed() const {
    double sum = 0.0;
    for (const CommunicationTime& part : communication.value_or(std::vector<CommunicationTime>())) {
        sum += part.exposed;
    }
    return sum;
}

double Measured::hidden() const {
    double sum = 0.0;
    for (const CommunicationTime& part : communication.value_or(std::vector<CommunicationTime>())) {
        sum += part.hidden;
    }
    return sum;
}

std::string point_file(const std::string& directory, const std::string& key) {
    return directory + "/points/" + key + ".json";
}

Measured read_measured(const std::string& file) {
    try {
        return measured_from(read_json(file));
    } catch (const nlohmann::json::exception& error) {
        throw_error(ErrorCode::kIo, "scale run",
                    concat(file, ": is not what a point writes: ", error.what()));
    }
}

void write_result(const std::string& directory,
                  const Result& result,
                  const std::string& measured_file) {
    Json json = {{"key", result.key},
                 {"settings_hash", hash_text(hash_of(result.settings))},
                 {"settings", Json::parse(result.settings)},
                 {"attempts", result.attempts},
                 {"failure", nullptr},
                 {"result", nullptr}};
    if (!result.failure.empty()) json["failure"] = result.failure;
    if (!measured_file.empty()) json["result"] = read_json(measured_file);
    // What a program says need not be UTF-8.
    write_file_atomically(point_file(directory, result.key),
                          json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result read_result(const std::string& file) {
    const Json json = read_json(file);
    Result result;
    try {
        result.key = json.at("key");
        result.settings = json.at("settings").dump();
        result.ranks = json.at("settings").at("ranks");
        result.attempts = json.at("attempts");
        if (!json.at("failure").is_null()) result.failure = json.at("failure");
        if (!json.at("result").is_null()) result.measured = measured_from(json.at("result"));
        parse_config([&](ConfigVisitor& v) { result.config.visit_fields(v); },
                     json.at("settings").at("config").dump(), file);
    } catch (const nlohmann::json::exception& error) {
        throw_error(ErrorCode::kIo, "scale run",
                    concat(file, ": is not a point's result, remove it: ", error.what()));
    }
    const auto check = [&](bool right, const char* what) {
        EVENKEEL_CHECK_CODE(right, ErrorCode::kIo, "scale run", file, ": ", what, "; remove it");
    };
    check(result.measured.has_value() != !result.failure.empty(),
          "has neither result nor failure, or both");
    check(result.key == std::filesystem::path(file).stem(), "is another point's result");
    check(json.value("settings_hash", "") == hash_text(hash_of(result.settings)),
          "its settings are not those that were measured");
    const TrainerConfig& trainer = result.config.trainer;
    check(result.ranks >= 1 && result.config.parallel.tensor_parallel >= 1 &&
              trainer.seq_len >= 1 && trainer.steps >= 1,
          "is no point's result");
    if (!result.measured) return result;
    const Measured& m = *result.measured;
    check(static_cast<std::int64_t>(m.losses.size()) == trainer.steps && m.nodes >= 1 &&
              m.tokens > 0.0 && m.seconds > 0.0 && m.first_quartile > 0.0 && m.third_quartile > 0.0,
          "is not what a point measures");
    return result;
}

void compare(const RunPlan& plan, const std::string& network, std::vector<Result>& results) {
    const auto losses = references(results, losses_key), sizes = references(results, series_key);
    for (Result& result : results) {
        if (!result.measured) continue;
        const Result& same = *losses.at(losses_key(result));
        result.loss_tolerance = plan.loss_tolerance > 0.0 ? plan.loss_tolerance
                                : result.config.model.type == ComputeType::kBf16 ? 5e-3
                                                                                 : 1e-4;
        if (&same != &result) {
            result.loss_reference = same.key;
            result.loss_difference =
                largest_difference(result.measured->losses, same.measured->losses);
        }
        const Result& base = *sizes.at(series_key(result));
        result.speed_up = result.measured->tokens_per_second() / base.measured->tokens_per_second();
        result.efficiency =
            result.speed_up * static_cast<double>(base.ranks) / static_cast<double>(result.ranks);
        set_utilisation(plan, result);
        result.modelled = model_of(plan, network, result);
    }
}

}  // namespace evenkeel::scale
