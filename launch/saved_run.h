// What commands take as a model: a run directory as train leaves it (config.json, metrics.jsonl, summary.json,
// checkpoints/, report.html), one of its checkpoints, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "framework/storage/checkpoint.h"
#include "framework/storage/tensor_source.h"
#include "launch/run_config.h"

namespace evenkeel {

struct SavedRun {
    std::string directory;   // of the run; the Hugging Face folder
    std::string checkpoint;  // the one to load; the Hugging Face folder
    std::int64_t step = 0;
    RunConfig
        config;  // as saved, with overrides; of a Hugging Face folder the model, else defaults
    std::string family;  // of a Hugging Face folder; "" for a run
    std::shared_ptr<const TensorSource> weights;
};

// path: a run directory (its newest verified checkpoint is taken), a checkpoint inside one or a Hugging Face folder,
// which must be as their manifests say, if there are any. Throws kIo naming what is missing. The grid is fitted to the
// readers' ranks unless an override sets a parallel.* key. Collective.
SavedRun open_saved_run(const std::string& path,
                        const std::vector<std::string>& overrides,
                        const CheckpointReaders& readers = {});
// The ranks of a communicator, which must outlive it.
CheckpointReaders readers_of(Communicator& world);

// The directory with the config.json, tokenizer and other files that the model was imported with, "" if it was not: of
// the checkpoint or, by trainer.init_from, of what its run started from.
std::string hugging_face_files(const SavedRun& run);

// Paths of the files of such a directory, or of a Hugging Face folder, that belong to the model whatever its weights are:
// config.json, generation_config.json, the tokenizer's, licences and notices. Not weights, code, READMEs or anything else.
// Throws kIo, as `op`, for one that is too large or a link out of the folder.
std::vector<std::filesystem::path> model_files(const std::string& folder, const char* op);
// Copies these to CHECKPOINT/hugging_face; returns their names.
std::vector<std::string> keep_hugging_face_files(const std::string& from,
                                                 const std::string& checkpoint);

// Whether a model's tokens are bytes: a vocabulary of these, and of a model that is not imported a few more at most,
// to make it divisible.
bool reads_bytes(const SavedRun& run);

// Text of unknown bytes made fit for a terminal or a page: invalid UTF-8 and control characters other
// than newline and tab are replaced by U+FFFD.
std::string printable(const std::string& text);
// The share of its characters that printable replaces; 0 of an empty text.
double unprintable_share(const std::string& text);
inline constexpr double kMostUnprintable = 0.25;  // of what is still called text

// "3,412,224".
std::string grouped(std::int64_t value);
// "%.4g" and the like, for one number.
std::string format(const char* pattern, double value);

}  // namespace evenkeel
