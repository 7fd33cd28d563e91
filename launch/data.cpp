// evenkeel data: files of tokens, made and looked at.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>
#include <optional>

#include "framework/data/token_stream.h"
#include "framework/json.h"
#include "framework/log.h"
#include "launch/commands.h"
#include "launch/memory_advice.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string progress_line(const CorpusProgress& done, double seconds) {
    const double rate = static_cast<double>(done.bytes) / std::max(seconds, 1e-9);
    const double left = static_cast<double>(done.total_bytes - done.bytes) / std::max(rate, 1.0);
    return concat(bytes_text(done.bytes), " of ", bytes_text(done.total_bytes), "  ",
                  grouped(done.documents), " documents  ", grouped(done.tokens), " tokens  ",
                  bytes_text(static_cast<std::size_t>(rate)), "/s  left ", format("%.0f", left),
                  " s");
}

// The lengths of documents, from the index.
struct Lengths {
    std::int64_t empty = 0, shortest = std::numeric_limits<std::int64_t>::max(), longest = 0;
};

Lengths lengths_of(const MegatronIndex& index) {
    Lengths lengths;
    for (std::int64_t d = 0; d < index.num_documents(); ++d) {
        const std::int64_t length = index.document_start(d + 1) - index.document_start(d);
        lengths.empty += length == 0 ? 1 : 0;
        lengths.shortest = std::min(lengths.shortest, length);
        lengths.longest = std::max(lengths.longest, length);
    }
    return lengths;
}

}  // namespace

void run_data_build(const DataBuildCommand& command) {
    const auto start = Clock::now();
    const CorpusProgress done = build_corpus(command.options, [&](const CorpusProgress& progress) {
        log_progress(progress_line(progress, seconds_since(start)),
                     progress.bytes == progress.total_bytes);
    });
    const std::string& prefix = command.options.output;
    if (command.json) {
        const Json out = {{"path", prefix + ".bin"},
                          {"documents", done.documents},
                          {"tokens", done.tokens},
                          {"input_bytes", done.total_bytes},
                          {"seconds", seconds_since(start)}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << prefix << ".bin  " << grouped(done.tokens) << " tokens in "
              << grouped(done.documents) << " documents, of " << bytes_text(done.total_bytes)
              << " in " << format("%.1f", seconds_since(start)) << " s\n";
}

void run_data_inspect(const DataInspectCommand& command) {
    std::error_code ignored;
    const bool is_prefix = std::filesystem::is_regular_file(command.path + ".bin", ignored);
    EVENKEEL_CHECK_CODE(is_token_file(command.path) || is_prefix, ErrorCode::kConfig, "data",
                        command.path,
                        " is no file of tokens; want FILE.bin, or a PREFIX with .bin and .idx");
    const auto description = read_token_description(command.path);
    // An id that the description does not know is an error.
    const std::int64_t vocab_size = description ? description->vocab_size : std::int64_t{1} << 31;
    const TokenStream stream(command.path, vocab_size, -1);
    const std::string tokenizer_name =
        command.tokenizer.empty() ? tokenizer_of(command.path) : command.tokenizer;
    std::vector<std::int32_t> first(
        static_cast<std::size_t>(std::min(stream.num_tokens(), command.tokens)));
    stream.read(0, first);
    std::string text;
    if (!tokenizer_name.empty() && (tokenizer_name == "bytes" || has_sentencepiece())) {
        text = printable(make_tokenizer(tokenizer_name)->decode(first));
    }
    const MegatronIndex* const index = stream.index();
    const Lengths lengths = index != nullptr ? lengths_of(*index) : Lengths();

    if (command.json) {
        Json out = {{"path", stream.path()},
                    {"format", name_of(stream.format())},
                    {"type", name_of(stream.type())},
                    {"tokens", stream.num_tokens()}};
        if (index != nullptr) {
            out["documents"] = index->num_documents();
            out["sequences"] = index->num_sequences();
            if (index->num_documents() > 0) {
                out["empty_documents"] = lengths.empty;
                out["shortest_document"] = lengths.shortest;
                out["longest_document"] = lengths.longest;
            }
        }
        if (description) {
            out["tokenizer"] = tokenizer_name;
            out["vocab_size"] = description->vocab_size;
            out["end_of_document"] = description->end_of_document;
        }
        out["first_tokens"] = first;
        if (!text.empty()) out["text"] = text;
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "file       " << stream.path() << "\nformat     " << name_of(stream.format())
              << ", ids of " << name_of(stream.type()) << "\ntokens     "
              << grouped(stream.num_tokens()) << "\n";
    if (index != nullptr) {
        std::cout << "documents  " << grouped(index->num_documents());
        if (index->num_documents() > 0) {
            std::cout << ", of " << grouped(lengths.shortest) << " to " << grouped(lengths.longest)
                      << " tokens, "
                      << format("%.1f", static_cast<double>(stream.num_tokens()) /
                                            static_cast<double>(index->num_documents()))
                      << " in the mean, " << grouped(lengths.empty) << " empty";
        }
        std::cout << "\n";
    }
    if (description) {
        std::cout << "tokenizer  " << tokenizer_name << ", " << grouped(description->vocab_size)
                  << " tokens, documents end with " << description->end_of_document << "\n";
    }
    std::cout << "begins    ";
    for (const std::int32_t id : first) std::cout << " " << id;
    std::cout << "\n";
    if (!text.empty()) std::cout << text << "\n";
}

}  // namespace evenkeel
