// Text for and from models, by the tokenizer that a run names.
#pragma once

#include <memory>
#include <string>

#include "framework/data/tokenizer.h"
#include "launch/saved_run.h"
#include "model/generate.h"

namespace evenkeel {

// Of data.tokenizer, else of what describes the run's files of tokens; null where neither names one, and for a run on
// a text, whose tokens are bytes. Throws kConfig for one of more tokens than the model has.
std::unique_ptr<Tokenizer> tokenizer_of_run(const RunConfig& config);

// Continues the prompt; where there is none, from what ends a document. tokenizer: null for bytes.
std::string generate_text(LanguageModel& model,
                          const Tokenizer* tokenizer,
                          const std::string& prompt,
                          const SampleOptions& options);

// "token" or "byte": what the loss of a run is counted by.
const char* unit_of(const RunConfig& config);

}  // namespace evenkeel
