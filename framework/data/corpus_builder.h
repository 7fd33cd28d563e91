// Text into a pair of files of tokens (megatron_index.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/data/tokenizer.h"

namespace evenkeel {

struct CorpusOptions {
    // Files of text, of JSON lines where the name ends in .jsonl or .json, or directories, of which the regular files
    // are taken in name order, without binary ones (text_files.h).
    std::vector<std::string> inputs;
    std::string output;               // the PREFIX
    std::string tokenizer = "bytes";  // see make_tokenizer
    std::string text_key = "text";    // of JSON lines: a document each
    // A line of a text that stands between two documents, and belongs to none; "": a text is one document.
    std::string separator;
    // Appended to each document; -1: nothing; below -1: the tokenizer's own.
    std::int64_t end_of_document = -2;
    int threads = 0;  // 0: as many as there are
};

struct CorpusProgress {
    std::uint64_t bytes = 0, total_bytes = 0;  // of the input
    std::int64_t documents = 0, tokens = 0;
};

// Writes OUTPUT.bin, OUTPUT.idx, OUTPUT.json (TokenDescription) and, with SentencePiece, OUTPUT.model, a copy of the
// model. They appear when all of it is on the disk; nothing is left of a failure. Ids are u8 for a vocabulary up to 256,
// u16 below 65,536, else i32. The same bytes at any number of threads. An empty document is left out. Takes 64 MiB of
// input at a time, or one document if that is longer, and 4 bytes a document. Throws kConfig for options that do not
// fit, also where an output is there already, and kIo naming file and line of what can't be read or is no document.
CorpusProgress build_corpus(const CorpusOptions& options,
                            const std::function<void(const CorpusProgress&)>& progress = {});

}  // namespace evenkeel
