// evenkeel import: a Hugging Face folder becomes a run that has made no step.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "framework/storage/staged_directory.h"
#include "launch/commands.h"
#include "launch/saved_run.h"
#include "launch/untold.h"
#include "model/hugging_face/folder.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

void write_weights(const hugging_face::Folder& folder, const std::string& directory) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const std::string& name : folder.names()) {
        declarations.push_back({name, folder.dtype(name), folder.shape(name)});
    }
    SafetensorsWriter writer(directory + "/model.safetensors", declarations,
                             {{"model", description_of(folder.config())}});
    for (const auto& [name, dtype, shape] : declarations) {
        const Tensor tensor = Tensor::uninitialized(shape, dtype);
        folder.read_slice(name, 0, 0, shape[0], tensor);
        writer.write(name, tensor);
    }
    writer.finish();
}

// "fp32, bf16": those that there are.
std::string types_of(const hugging_face::Folder& folder) {
    std::string text;
    for (const std::string& name : folder.names()) {
        const std::string type = name_of(folder.dtype(name));
        if (text.find(type) == std::string::npos) text += (text.empty() ? "" : ", ") + type;
    }
    return text;
}

}  // namespace

void run_import(const ImportCommand& command) {
    EVENKEEL_CHECK_CODE(fs::is_directory(command.folder), ErrorCode::kIo, "import", command.folder,
                        ": no such directory, want a Hugging Face folder");
    check_as_written(command.folder);
    const hugging_face::Folder folder(command.folder);
    RunConfig config;
    config.model = folder.config();
    config.trainer.seq_len = std::min(config.trainer.seq_len, config.model.max_seq_len);
    config.trainer.micro_batch_size = 4;  // so that more than one data-parallel rank has a part
    config.schedule = schedule_of_import();
    // A run that continues from these weights has a directory of its own.
    const fs::path run = fs::absolute(command.out).lexically_normal();
    config.trainer.init_from = (run / "checkpoints" / "step_00000000").string();
    config.trainer.run_dir = (run / "trained").string();

    StagedDirectory staged(command.out);
    const std::string checkpoint = staged.path() + "/checkpoints/step_00000000";
    fs::create_directories(checkpoint);
    write_weights(folder, checkpoint);
    const std::vector<std::string> kept = keep_hugging_face_files(command.folder, checkpoint);
    write_manifest(checkpoint, {});
    write_file_atomically(staged.path() + "/config.json", to_json(config));
    staged.commit();

    const std::int64_t parameters = parameter_count(config.model);
    if (command.json) {
        const nlohmann::ordered_json out = {{"run", command.out},
                                            {"family", folder.family().name},
                                            {"parameters", parameters},
                                            {"tensors", folder.names().size()},
                                            {"left_out", folder.left_out()},
                                            {"type", name_of(to_dtype(config.model.type))},
                                            {"peak_lr", config.schedule.peak_lr},
                                            {"kept_files", kept}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "family      " << folder.family().name << " (" << folder.family().summary
              << ")\nparameters  " << grouped(parameters) << " in " << folder.names().size()
              << " tensors\n";
    for (const std::string& name : folder.left_out()) {
        std::cout << "left out    " << printable(name)
                  << (name == folder.family().tied_output ? ": equal to the embedding" : "")
                  << "\n";
    }
    std::cout << "kept        " << kept.size() << (kept.size() == 1 ? " file" : " files")
              << " for export\ncomputes    in " << name_of(to_dtype(config.model.type))
              << " (model.type), from weights of " << types_of(folder) << "\ntrains      "
              << course_of(config) << "\n            " << untold_rate(config) << "\nrun         "
              << command.out << "\n";
}

}  // namespace evenkeel
