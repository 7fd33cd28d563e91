// The subcommands of the `evenkeel` program. Each lives in the file of its name, takes plain options and
// returns normally or throws Error; only cli.cpp knows how they are typed on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/corpus_builder.h"
#include "framework/device.h"
#include "launch/exit_status.h"
#include "model/model_config.h"
#include "parallel/communicator.h"

namespace evenkeel {

struct TrainCommand {
    std::string config;                  // --config FILE
    std::vector<std::string> overrides;  // --set path=value
    bool plan = false;                   // --plan: only print what memory each rank would take
    std::optional<std::int64_t> rewind;  // --rewind STEP: go on from there, at most
};
// Trains (collective over world), then prints what was reached and writes the run's report. Returns the exit
// status: kExitStopped when a signal ended the run, after a checkpoint.
int run_train(const TrainCommand& command, Communicator& world);

struct EvalCommand {
    std::string run;  // a run directory, one of its checkpoints or a Hugging Face folder
    std::vector<std::string> overrides;
    std::string tokens;  // --tokens: a file of sequences, to be taken instead of text
    std::string logits;  // --logits: where to write their logits; "": nowhere, the loss is printed
    bool json = false;
};
void run_eval(const EvalCommand& command, Communicator& world);

struct SampleCommand {
    std::string run;
    std::vector<std::string> overrides;
    std::string prompt;
    std::int64_t tokens = 300;
    double temperature = 0.8;
    std::int64_t seed = 1;
};
void run_sample(const SampleCommand& command, Communicator& world);

struct DataBuildCommand {
    CorpusOptions options;
    bool json = false;
};
// Text into files of tokens.
void run_data_build(const DataBuildCommand& command);

struct DataInspectCommand {
    std::string path;          // a file of tokens
    std::string tokenizer;     // "": what describes the file names
    std::int64_t tokens = 32;  // of its beginning, to be shown
    bool json = false;
};
// Prints what a file of tokens holds.
void run_data_inspect(const DataInspectCommand& command);

struct RetrofitCommand {
    std::string model;  // --model: as for eval
    std::string data;   // --data: a text, or a file of tokens; "": the model's own text
    std::string out;    // --out: a run directory that is not there yet
    std::string gains = "mean_rms";      // --gains
    std::optional<double> bound;         // --bound
    std::optional<std::int64_t> anneal;  // --anneal
    std::string layers;                  // --layers; "": all
    std::int64_t tokens = 4096;          // --tokens: to calibrate on
    bool refine = true;                  // not --no-refine
    std::vector<std::string> overrides;
    bool json = false;
};
// Gives a trained model QK-norm: gains, a checkpoint with them, what they cost, and how to go on.
void run_retrofit(const RetrofitCommand& command, Communicator& world);

struct InspectCommand {
    std::string
        path;  // a run, a checkpoint, a Hugging Face folder, a directory of safetensors files, or one
               // such file
    bool json = false;
    bool verify = false;  // hash what a manifest names
    bool accept = false;  // write the manifest anew, for the files as they are
};
void run_inspect(const InspectCommand& command);

struct ImportCommand {
    std::string folder;  // of Hugging Face
    std::string out;     // a run directory that is not there yet
    bool json = false;
};
void run_import(const ImportCommand& command);

struct ExportCommand {
    std::string run;     // a run or one of its checkpoints
    std::string out;     // a directory that is not there yet
    std::string family;  // "": the one it came from, or the first that can hold it
    std::string dtype;   // fp32, bf16, fp16; "": as in the checkpoint
    std::int64_t shard_bytes = 5'000'000'000;
    bool remote_code =
        false;  // a family that the transformers package does not know, with its code
    bool json = false;
};
void run_export(const ExportCommand& command);

struct ReportCommand {
    std::string run;
    std::string compare;  // another run whose loss curve is held against this one; "": none
    std::string output;   // "": RUN/report.html
    bool json = false;
};
void run_report(const ReportCommand& command);

struct MethodsCommand {
    bool json = false;
};
// Prints the methods that model.method knows.
void run_methods(const MethodsCommand& command);

struct BenchCommand {
    std::vector<std::string> only;  // names of measurements; empty: all
    Device device = Device::kCpu;
    bool json = false;
};
void run_bench(const BenchCommand& command, Communicator& world);
std::vector<std::string> bench_names();

// What `evenkeel bench` measures of one computation, on the CPU: seconds of a call and the memory that it takes.
struct BenchAttentionCommand {
    std::int64_t batch = 1, tokens = 2048, heads = 8, kv_heads = 4, head_dim = 64;
    ComputeType type = ComputeType::kBf16;
    bool backward = true;
    double seconds = 1.0;    // that it is measured for
    std::int64_t calls = 0;  // to measure, whatever time they take; 0: as many as fill the seconds
    std::string inputs, outputs;  // safetensors files; "": random inputs, outputs are not kept
    bool json = false;
};
void run_bench_attention(const BenchAttentionCommand& command, Communicator& world);

struct BenchStepCommand {
    std::string config;  // --config FILE
    std::vector<std::string> overrides;
    std::string tokens;  // a file of sequences; "": random ones
    double seconds = 3.0;
    std::int64_t steps = 0;  // to measure, whatever time they take; 0: as many as fill the seconds
    bool json = false;
};
// Collective over world.
void run_bench_step(const BenchStepCommand& command, Communicator& world);

struct StudyCommand {
    std::string name;
    std::string out;                     // --out: directory for its files; "": runs/studies/NAME
    std::vector<std::string> overrides;  // --set key=value
    bool json = false;
    std::string point;  // --point: compute only this one of the study's points
};
void run_study(StudyCommand command);
struct StudyHelp {
    std::string name, summary;
    std::string settings;     // what --set takes, a paragraph; "": nothing
    bool has_points = false;  // each computed in a process of its own
};
std::vector<StudyHelp> study_helps();

// The table of configs/README.md.
std::string config_table();

}  // namespace evenkeel
