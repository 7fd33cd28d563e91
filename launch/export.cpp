// evenkeel export: a saved model becomes a Hugging Face folder.
#include "model/hugging_face/export.h"

#include <filesystem>
#include <iostream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/staged_directory.h"
#include "launch/commands.h"
#include "launch/saved_run.h"
#include "model/hugging_face/folder.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

std::optional<DType> dtype_named(const std::string& name) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        if (name == name_of(dtype)) return dtype;
    }
    return std::nullopt;
}

std::string family_with_code() {
    for (const hugging_face::Family* family : hugging_face::families()) {
        if (family->files != nullptr) return family->name;
    }
    return "";
}

// Of the folder that the model came from: what belongs to the model whatever its weights are. config.json is written
// already; where it says what the original says it becomes the original, byte by byte.
void copy_files(const std::string& from, const std::string& to) {
    if (from.empty()) return;
    const hugging_face::ConfigJson before = hugging_face::read_config_json(from);
    if (hugging_face::read_config_json(to).to_text() == before.to_text()) {
        fs::copy_file(from + "/config.json", to + "/config.json",
                      fs::copy_options::overwrite_existing);
    }
    for (const fs::path& file : model_files(from, "export")) {
        const fs::path target = fs::path(to) / file.filename();
        if (!fs::exists(target)) fs::copy_file(file, target);
    }
}

}  // namespace

void run_export(const ExportCommand& command) {
    const SavedRun run = open_saved_run(command.run, {});
    EVENKEEL_CHECK_CODE(run.family.empty(), ErrorCode::kConfig, "export", command.run,
                        ": is a Hugging Face folder already, want a run or a checkpoint in one");
    EVENKEEL_CHECK_CODE(command.shard_bytes > 0, ErrorCode::kConfig, "export",
                        "--shard-size: got 0, want 1 or more");
    std::string name = command.family;
    if (command.remote_code) {
        const std::string with_code = family_with_code();
        EVENKEEL_CHECK_CODE(!with_code.empty() && (name.empty() || name == with_code),
                            ErrorCode::kConfig, "export", "--remote-code: got --family ", name,
                            ", want none or ", with_code);
        name = with_code;
    }
    const std::string files = hugging_face_files(run);
    const hugging_face::ConfigJson origin =
        files.empty() ? hugging_face::ConfigJson() : hugging_face::read_config_json(files);
    const hugging_face::Fit fit =
        hugging_face::fit_any(name, run.config.model, *run.weights, origin);

    StagedDirectory staged(command.out);
    const hugging_face::FolderSummary summary =
        hugging_face::write_folder(*run.weights, fit,
                                   {.dtype = dtype_named(command.dtype),
                                    .shard_bytes = static_cast<std::uint64_t>(command.shard_bytes)},
                                   staged.path());
    copy_files(files, staged.path());
    staged.commit();

    if (command.json) {
        const nlohmann::ordered_json out = {
            {"folder", command.out},  {"family", fit.family->name}, {"checkpoint", run.checkpoint},
            {"files", summary.files}, {"tensors", summary.tensors}, {"bytes", summary.bytes}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "checkpoint  " << run.checkpoint << "\nfamily      " << fit.family->name << " ("
              << fit.family->summary << ")\nwritten     " << summary.tensors << " tensors, "
              << grouped(static_cast<std::int64_t>(summary.bytes)) << " bytes, " << summary.files
              << (summary.files == 1 ? " file" : " files") << "\nfolder      " << command.out
              << "\n";
}

}  // namespace evenkeel
