#include "tests/launch/command_line.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <stdexcept>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel::testing {

Outcome run_command(const std::string& command, int limit_seconds) {
    const std::string limited =
        "timeout " + std::to_string(limit_seconds) + " sh -c '" + command + "' 2>&1";
    FILE* pipe = ::popen(limited.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("popen failed: " + command);
    Outcome outcome;
    char buffer[4096];
    while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) {
        outcome.output.append(buffer, count);
    }
    const int status = ::pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
}

Outcome run_evenkeel(const std::string& arguments, int limit_seconds) {
    return run_command(std::string(EVENKEEL_PROGRAM) + " " + arguments, limit_seconds);
}

void expect_refusal(const Outcome& outcome, const Refusal& refusal) {
    EXPECT_EQ(outcome.status, refusal.status) << outcome.output;
    for (const std::string& word : refusal.words) {
        EXPECT_NE(outcome.output.find(word), std::string::npos)
            << "\"" << word << "\" is not in: " << outcome.output;
    }
}

nlohmann::json results_of(const std::string& study,
                          const std::string& directory,
                          const std::string& settings) {
    const Outcome outcome =
        run_evenkeel("study " + study + " --out " + directory + " " + settings, 110);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return nlohmann::json::parse(read_file(directory + "/results.json"));
}

Outcome open_page(const TemporaryDirectory& home, const std::string& page) {
    return run_command("HOME=" + home.file("home") +
                       " chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=10000"
                       " --enable-logging=stderr --dump-dom file://" +
                       page);
}

int count_of(const std::string& what, const std::string& text) {
    int n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
        ++n;
    return n;
}

TinyRun::TinyRun() {
    std::string words;
    for (int i = 0; i < 600; ++i) words += "Evenkeel reads line " + std::to_string(i * i) + ".\n";
    text = directory.write("text.txt", words);
    run = directory.file("run");
    config = directory.write("config.json", R"({
        "model": {"num_layers": 2, "width": 32, "feed_forward_width": 64, "max_seq_len": 32,
                  "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}},
        "data": {"path": ")" + text + R"("},
        "trainer": {"steps": 4, "batch_size": 2, "micro_batch_size": 2, "seq_len": 32,
                    "eval_sequences": 4, "run_dir": ")" +
                                                run + R"("}
    })");
}

std::string TinyRun::train(const std::string& settings) const {
    return "train --config " + config + " " + settings;
}

std::string TinyRun::checkpoint(int step) const {
    return run + "/checkpoints/step_0000000" + std::to_string(step);
}

}  // namespace evenkeel::testing
