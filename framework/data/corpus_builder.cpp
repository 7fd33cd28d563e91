#include "framework/data/corpus_builder.h"

#include <fcntl.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <utility>

#include "framework/data/document_reader.h"
#include "framework/data/megatron_index.h"
#include "framework/error.h"
#include "framework/log.h"
#include "framework/storage/file.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "data build";
constexpr std::uint64_t kBytesAtATime = 64 << 20;

TokenType type_for(std::int64_t vocab_size) {
    if (vocab_size <= 256) return TokenType::kUint8;
    return vocab_size < 65536 ? TokenType::kUint16 : TokenType::kInt32;
}

// What a signal that ends the process is to leave behind: nothing of these. A handler may look at no more than that.
constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr std::size_t kMostNames = 4;
char staged_names[kMostNames][PATH_MAX];
std::atomic<std::size_t> num_staged{0};
static_assert(std::atomic<std::size_t>::is_always_lock_free);

extern "C" void remove_staged(int signal) {
    for (std::size_t i = 0; i < num_staged; ++i) ::unlink(staged_names[i]);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

// Files under temporary names beside their final ones. One at a time.
class StagedFiles {
  public:
    explicit StagedFiles(std::string prefix) : prefix_(std::move(prefix)) {
        const fs::path name = fs::path(prefix_).filename();
        EVENKEEL_CHECK_CODE(
            !name.empty() && name != "." && name != ".." && name.extension() != ".bin" &&
                name.extension() != ".idx",
            ErrorCode::kConfig, kOp, "--out: got ", prefix_,
            ", want what the files' names begin with, such as data/corpus for data/corpus.bin");
        EVENKEEL_CHECK_CODE(prefix_.size() + 64 < PATH_MAX, ErrorCode::kConfig, kOp, "--out: got ",
                            prefix_.size(), " characters, want fewer than ", PATH_MAX - 64);
        for (const char* suffix : {".bin", ".idx", ".json", ".model"}) {
            std::error_code error;
            const bool is_there = fs::exists(prefix_ + suffix, error);
            EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, kOp, prefix_, suffix,
                                ": cannot look at: ", error.message());
            EVENKEEL_CHECK_CODE(!is_there, ErrorCode::kConfig, kOp, prefix_, suffix, kIsThere);
        }
        tell_left_overs();
        make_directories();
        num_staged = 0;
        struct sigaction action {};
        action.sa_handler = remove_staged;
        sigemptyset(&action.sa_mask);
        for (std::size_t i = 0; i < std::size(kEndSignals); ++i) {
            ::sigaction(kEndSignals[i], nullptr, &before_[i]);
            if (before_[i].sa_handler != SIG_DFL) continue;  // under nohup, say
            ::sigaction(kEndSignals[i], &action, nullptr);
        }
    }
    ~StagedFiles() {
        std::error_code ignored;
        for (const auto& [suffix, name] : names_) fs::remove(name, ignored);
        for (std::size_t i = 0; i < std::size(kEndSignals); ++i) {
            ::sigaction(kEndSignals[i], &before_[i], nullptr);
        }
        num_staged = 0;
        if (is_committed_) return;
        for (auto made = made_.rbegin(); made != made_.rend(); ++made) fs::remove(*made, ignored);
    }
    StagedFiles(const StagedFiles&) = delete;
    StagedFiles& operator=(const StagedFiles&) = delete;

    File create(const std::string& suffix) {
        const std::string name = concat(prefix_, suffix, ".tmp-", ::getpid());
        names_.emplace_back(suffix, name);
        name.copy(staged_names[names_.size() - 1], name.size());
        staged_names[names_.size() - 1][name.size()] = '\0';
        num_staged = names_.size();
        return File::create(name);
    }
    // In the order in which they were created. All of them are on the disk. Of two that write the same files at once
    // one ends here, before it has written any.
    void commit() {
        for (auto& [suffix, name] : names_) {
            const std::string path = prefix_ + suffix;
            int status =
                ::renameat2(AT_FDCWD, name.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
            if (status != 0 && errno == EINVAL) {  // not every file system can
                status =
                    fs::exists(path) ? (errno = EEXIST, -1) : ::rename(name.c_str(), path.c_str());
            }
            EVENKEEL_CHECK_CODE(status == 0 || errno != EEXIST, ErrorCode::kConfig, kOp, path,
                                kIsThere);
            EVENKEEL_CHECK_CODE(status == 0, ErrorCode::kIo, kOp, path,
                                ": cannot rename to: ", std::strerror(errno));
        }
        is_committed_ = true;
        names_.clear();
        sync_directory(parent_directory(prefix_));
    }

  private:
    static constexpr const char* kIsThere = ": is there already; want another --out";

    // Of builds of the same files that were killed. Processes of another machine are not seen from here, so that nothing is
    // removed.
    void tell_left_overs() const {
        const std::string begins = fs::path(prefix_).filename().string();
        std::error_code error;
        fs::directory_iterator it(parent_directory(prefix_), error);
        for (; !error && it != fs::directory_iterator(); it.increment(error)) {
            const std::string name = it->path().filename().string();
            for (const char* suffix : {".bin", ".idx", ".json", ".model"}) {
                const std::string staged = begins + suffix + ".tmp-";
                if (!name.starts_with(staged)) continue;
                const int process = std::atoi(name.c_str() + staged.size());
                if (process <= 0 || ::kill(process, 0) == 0 || errno != ESRCH) continue;
                log_warning(concat(it->path().string(),
                                   ": left by a build that was killed, unless one on another "
                                   "machine writes it now; remove it"));
            }
        }
    }

    // Remembers those that were not there.
    void make_directories() {
        const std::string parent = parent_directory(prefix_);
        std::error_code error;
        for (fs::path path = parent; !path.empty() && !fs::exists(path, error) && !error;
             path = path.parent_path()) {
            made_.insert(made_.begin(), path);
        }
        if (!error) fs::create_directories(parent, error);
        EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, kOp, parent,
                            ": cannot create: ", error.message());
    }

    std::string prefix_;
    std::vector<std::pair<std::string, std::string>> names_;
    std::vector<fs::path> made_;  // directories, from the outermost on
    struct sigaction before_[std::size(kEndSignals)];
    bool is_committed_ = false;
};

void close_synced(File& file) {
    file.sync();
    file.close();
}

// A document's ids as the file holds them.
struct Encoded {
    std::string bytes;
    std::int64_t tokens = 0;
    std::exception_ptr error;
};

Encoded encode(RawDocument& document,
               const Tokenizer& tokenizer,
               TokenType type,
               const CorpusOptions& options,
               std::int64_t end_of_document) {
    Encoded result;
    try {
        const std::string origin = document.origin;
        const std::string text = text_of(std::move(document), options.text_key);
        if (text.empty()) return result;
        std::vector<std::int32_t> ids = tokenizer.encode(text);
        if (options.tokenizer == "bytes" && end_of_document >= 0) {
            const auto at = std::find(ids.begin(), ids.end(), end_of_document);
            EVENKEEL_CHECK_CODE(
                at == ids.end(), ErrorCode::kIo, kOp, origin, ": byte ", at - ids.begin(),
                " of the document is ", end_of_document, ", which is to end documents; ",
                end_of_document == 0 ? "if the file is binary leave it out, else take " : "want ",
                "--end-of-document -1, or another byte that no text has");
        }
        if (end_of_document >= 0) ids.push_back(static_cast<std::int32_t>(end_of_document));
        result.tokens = static_cast<std::int64_t>(ids.size());
        EVENKEEL_CHECK_CODE(result.tokens <= INT32_MAX, ErrorCode::kIo, kOp, origin, ": got ",
                            result.tokens, " tokens in a document, want fewer than 2^31");
        result.bytes.resize(ids.size() * size_of(type));
        for_token_type(type, [&]<typename T>() {
            for (std::size_t i = 0; i < ids.size(); ++i) {
                const T id = static_cast<T>(ids[i]);
                std::memcpy(result.bytes.data() + i * sizeof(T), &id, sizeof id);
            }
        });
    } catch (...) {
        result.error = std::current_exception();
    }
    return result;
}

}  // namespace

CorpusProgress build_corpus(const CorpusOptions& options,
                            const std::function<void(const CorpusProgress&)>& progress) {
    EVENKEEL_CHECK_CODE(!options.output.empty(), ErrorCode::kConfig, kOp,
                        "--out: got nothing, want the beginning of the files' names");
    const auto tokenizer = make_tokenizer(options.tokenizer);
    const std::int64_t vocab_size = tokenizer->vocab_size();
    const std::int64_t end_of_document =
        options.end_of_document < -1 ? tokenizer->end_of_document() : options.end_of_document;
    EVENKEEL_CHECK_CODE(end_of_document < vocab_size, ErrorCode::kConfig, kOp,
                        "--end-of-document: got ", end_of_document, ", want a token below ",
                        vocab_size, ", or -1 for none");
    const TokenType type = type_for(vocab_size);
    DocumentReader reader(options.inputs, options.separator);
    StagedFiles files(options.output);
    // The .bin file comes by its name last: with the others there, it can't be taken for one without an index.
    File index = files.create(".idx");
    File description = files.create(".json");
    const bool has_model = options.tokenizer != "bytes";
    if (has_model) {
        File from = File::open_for_reading(options.tokenizer), to = files.create(".model");
        const std::string model = from.read_rest();
        to.write(model.data(), model.size());
        close_synced(to);
    }
    File bin = files.create(".bin");

    const int threads = options.threads > 0 ? options.threads : omp_get_max_threads();
    CorpusProgress done;
    done.total_bytes = reader.total_bytes();
    std::vector<std::int32_t> lengths;
    for (bool more = true; more;) {
        std::vector<RawDocument> documents;
        RawDocument document;
        for (std::uint64_t bytes = 0; bytes < kBytesAtATime;) {
            more = reader.next(document);
            if (!more) break;
            bytes += document.text.size() + sizeof document;
            documents.push_back(std::move(document));
        }
        std::vector<Encoded> encoded(documents.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (std::size_t i = 0; i < documents.size(); ++i) {
            encoded[i] = encode(documents[i], *tokenizer, type, options, end_of_document);
        }
        for (const Encoded& one : encoded) {
            if (one.error) std::rethrow_exception(one.error);
            if (one.tokens == 0) continue;
            bin.write(one.bytes.data(), one.bytes.size());
            lengths.push_back(static_cast<std::int32_t>(one.tokens));
            done.tokens += one.tokens;
            ++done.documents;
        }
        done.bytes = reader.bytes_read();
        if (progress) progress(done);
    }
    EVENKEEL_CHECK_CODE(done.tokens > 0, ErrorCode::kConfig, kOp,
                        "got no text in any of the files, want some");
    close_synced(bin);
    write_megatron_index(index, type, lengths);
    close_synced(index);
    const std::string model_name = fs::path(options.output).filename().string() + ".model";
    const std::string json =
        to_json(TokenDescription{has_model ? model_name : "bytes", vocab_size, end_of_document});
    description.write(json.data(), json.size());
    close_synced(description);
    files.commit();
    return done;
}

}  // namespace evenkeel
