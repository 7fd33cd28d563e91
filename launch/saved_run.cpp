#include "launch/saved_run.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/state_shard.h"
#include "launch/untold.h"
#include "model/hugging_face/folder.h"

namespace evenkeel {

namespace fs = std::filesystem;

namespace {

// A checkpoint loads at any number of ranks: unless the command line says how to use those there are, they
// share the layers as in training where that divides them, or else all together.
void fit_to_ranks(ParallelConfig& parallel,
                  const std::vector<std::string>& overrides,
                  int world_size) {
    for (const std::string& assignment : overrides) {
        if (assignment.starts_with("parallel.")) return;
    }
    if (world_size % parallel.tensor_parallel != 0) {
        parallel.tensor_parallel = world_size;
        parallel.sequence_parallel = false;  // its rule is one of training
    }
    parallel.data_parallel = 0;
}

// Nothing is trained, so the batch of a step need not be divisible among these ranks.
void fit_batch(RunConfig& config, int world_size) {
    config.trainer.batch_size =
        config.trainer.micro_batch_size *
        std::max<std::int64_t>(world_size / config.parallel.tensor_parallel, 1);
}

SavedRun open_folder(const std::string& path, const std::vector<std::string>& overrides) {
    const auto folder = std::make_shared<const hugging_face::Folder>(path);
    SavedRun run;
    run.directory = run.checkpoint = path;
    run.family = folder->family().name;
    run.config.model = folder->config();
    run.config.trainer.seq_len = std::min(run.config.trainer.seq_len, run.config.model.max_seq_len);
    run.config.schedule = schedule_of_import();
    for (const std::string& assignment : overrides) {
        apply_override([&](ConfigVisitor& v) { run.config.visit_fields(v); }, assignment);
    }
    run.weights = folder;
    return run;
}

// Readers null: the newest checkpoint, not verified.
SavedRun open_run(const fs::path& directory,
                  const std::vector<std::string>& overrides,
                  const CheckpointReaders* readers) {
    SavedRun run;
    // RUN/checkpoints/step_00000020; a folder of someone else's has model.safetensors too.
    const fs::path above = fs::absolute(directory).parent_path().parent_path();
    const bool is_checkpoint = has_state(directory.string(), "model") &&
                               !fs::exists(directory / "config.json") &&
                               fs::exists(above / "config.json");
    const fs::path run_directory = is_checkpoint ? above : directory;
    run.directory = run_directory.string();
    const fs::path config = run_directory / "config.json";
    EVENKEEL_CHECK_CODE(fs::exists(config), ErrorCode::kIo, "open_run", directory.string(),
                        ": neither a run, a checkpoint in one nor a Hugging Face folder, ",
                        config.string(), " is missing");
    run.config = load_run_config(config.string(), overrides);
    EVENKEEL_CHECK_CODE(is_checkpoint || fs::is_directory(run_directory / "checkpoints"),
                        ErrorCode::kIo, "open_run", directory.string(),
                        ": holds no complete checkpoint; train it first");
    if (readers != nullptr) {
        run.checkpoint = newest_checkpoint(directory.string(), *readers);
    } else {
        run.checkpoint = is_checkpoint
                             ? directory.string()
                             : CheckpointStore((directory / "checkpoints").string(), 0).latest();
    }
    const std::string name = fs::path(run.checkpoint).filename().string();  // step_00000020
    if (name.starts_with("step_")) run.step = std::atoll(name.c_str() + 5);
    if (!run.checkpoint.empty()) run.weights = open_state(run.checkpoint, "model");
    return run;
}

SavedRun open_any(const std::string& path,
                  const std::vector<std::string>& overrides,
                  const CheckpointReaders* readers) {
    EVENKEEL_CHECK_CODE(fs::is_directory(path), ErrorCode::kIo, "open_run", path,
                        ": no such directory, want a run, a checkpoint in one or a Hugging Face ",
                        "folder");
    fs::path directory = fs::path(path).lexically_normal();
    if (directory.filename().empty()) directory = directory.parent_path();  // "runs/a/"
    if (!hugging_face::is_folder(directory.string())) {
        return open_run(directory, overrides, readers);
    }
    if (readers != nullptr) check_as_written(directory.string(), *readers);
    return open_folder(directory.string(), overrides);
}

// Files that say nothing of the weights but belong to the model.
bool is_kept(const std::string& name) {
    constexpr const char* kNames[] = {
        "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer.model",
        "chat_template.json",  "tokenizer_config.json",   "vocab.json",     "merges.txt",
        "chat_template.jinja", "special_tokens_map.json", "vocab.txt",      "added_tokens.json",
        "spiece.model",        "sentencepiece.bpe.model", "tekken.json"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
           name.starts_with("LICENSE") || name.starts_with("NOTICE");
}

}  // namespace

CheckpointReaders readers_of(Communicator& world) {
    return {world.rank(), world.size(),
            [&world](double value) { return world.all_reduce_scalar(value, ReduceOp::kMax); }};
}

SavedRun open_saved_run(const std::string& path,
                        const std::vector<std::string>& overrides,
                        const CheckpointReaders& readers) {
    SavedRun run = open_any(path, overrides, &readers);
    fit_to_ranks(run.config.parallel, overrides, readers.ranks);
    fit_batch(run.config, readers.ranks);
    return run;
}

std::string hugging_face_files(const SavedRun& run) {
    if (!run.family.empty()) return run.directory;
    constexpr int kMaxRuns = 32;  // a run may start from one that started from another
    std::string checkpoint = run.checkpoint, init_from = run.config.trainer.init_from;
    for (int i = 0; i < kMaxRuns; ++i) {
        const fs::path files = fs::path(checkpoint) / "hugging_face";
        if (fs::exists(files / "config.json")) return files.string();
        if (init_from.empty() || !fs::is_directory(init_from)) return "";
        const SavedRun before = open_any(init_from, {}, nullptr);
        if (!before.family.empty()) return before.directory;
        checkpoint = before.checkpoint;
        init_from = before.config.trainer.init_from;
    }
    return "";
}

namespace {

// A link leads to the folder's own files or, as in a cache of downloads (MODEL/snapshots/REVISION), to those in
// MODEL/blobs: a folder from elsewhere must not have other files of this machine copied and handed on.
void check_link(const fs::directory_entry& entry, const fs::path& folder, const char* op) {
    if (!entry.is_symlink()) return;
    const fs::path file = fs::canonical(entry.path());
    const fs::path model = folder.parent_path().parent_path();
    const bool cached =
        folder.parent_path().filename() == "snapshots" && file.parent_path() == model / "blobs";
    EVENKEEL_CHECK_CODE(file.parent_path() == folder || cached, ErrorCode::kIo, op,
                        entry.path().string(), ": got a link to ", file.string(),
                        ", want a file of the folder");
}

}  // namespace

std::vector<fs::path> model_files(const std::string& folder, const char* op) {
    constexpr std::uint64_t kMaxBytes = 256 << 20;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (!is_kept(entry.path().filename().string())) continue;
        std::error_code error;
        const fs::file_status status = entry.status(error);
        EVENKEEL_CHECK_CODE(!error || status.type() == fs::file_type::not_found, ErrorCode::kIo, op,
                            entry.path().string(), ": cannot look at it: ", error.message());
        if (!fs::is_regular_file(status)) continue;
        check_link(entry, fs::canonical(folder), op);
        EVENKEEL_CHECK_CODE(entry.file_size() <= kMaxBytes, ErrorCode::kIo, op,
                            entry.path().string(), ": got ", entry.file_size(),
                            " bytes, want at most ", kMaxBytes);
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

std::vector<std::string> keep_hugging_face_files(const std::string& from,
                                                 const std::string& checkpoint) {
    const std::string to = checkpoint + "/hugging_face";
    fs::create_directory(to);
    std::vector<std::string> kept;
    for (const fs::path& file : model_files(from, "import")) {
        kept.push_back(file.filename().string());
        fs::copy_file(file, fs::path(to) / kept.back());
    }
    return kept;
}

bool reads_bytes(const SavedRun& run) {
    constexpr std::int64_t kBytes = 256, kMostOfBytes = 512;
    const std::int64_t vocab_size = run.config.model.vocab_size;
    if (vocab_size == kBytes) return true;
    return vocab_size > kBytes && vocab_size < kMostOfBytes && hugging_face_files(run).empty();
}

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Printable {
    std::string text;
    std::int64_t characters = 0, replaced = 0;
};

Printable make_printable(const std::string& text) {
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    const std::string valid =
        nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, kReplace));
    Printable out;
    for (std::size_t i = 0; i < valid.size();) {
        const auto byte = static_cast<unsigned char>(valid[i]);
        const std::size_t length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
        const std::string character = valid.substr(i, length);
        i += length;
        // Those above 0x7f, which terminals obey too, are 0xc2 and a byte below 0xa0.
        const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f ||
                             (byte == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0);
        const bool replaced = control || character == kReplacement;
        out.text += replaced ? kReplacement : character;
        out.replaced += replaced ? 1 : 0;
        ++out.characters;
    }
    return out;
}

}  // namespace

std::string printable(const std::string& text) { return make_printable(text).text; }

double unprintable_share(const std::string& text) {
    const Printable made = make_printable(text);
    return made.characters == 0
               ? 0.0
               : static_cast<double>(made.replaced) / static_cast<double>(made.characters);
}

std::string grouped(std::int64_t value) {
    const std::string digits = std::to_string(value);
    const std::size_t sign = value < 0 ? 1 : 0;
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        const std::size_t left = digits.size() - i;
        if (i > sign && left % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

}  // namespace evenkeel
