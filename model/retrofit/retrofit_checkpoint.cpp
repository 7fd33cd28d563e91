// The checkpoint that a retrofit leaves: an old one's tensors with gains among them.
#include <filesystem>
#include <optional>

#include "framework/storage/checkpoint.h"
#include "framework/storage/state_shard.h"
#include "framework/training/run_state.h"
#include "model/retrofit/retrofit.h"
#include "parallel/sharded_state.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

void write_model(const ProcessGrid& grid,
                 LanguageModel& model,
                 const TensorSource& weights,
                 const std::string& directory) {
    std::optional<SafetensorsWriter> writer;
    if (model.is_main_rank()) {
        std::vector<SafetensorsWriter::Declaration> declarations;
        for (const Parameter* parameter : model.parameters()) {
            const bool is_old = weights.contains(parameter->name);
            declarations.push_back({parameter->name,
                                    is_old ? weights.dtype(parameter->name) : DType::kFloat32,
                                    parameter->global_shape});
        }
        writer.emplace(directory + "/model.safetensors", declarations,
                       SafetensorsMetadata{{"model", model.description()}});
    }
    if (grid.dp_rank() == 0) {
        for (const Parameter* parameter : model.parameters()) {
            const std::string& name = parameter->name;
            if (!weights.contains(name)) {
                const Tensor whole = gather_parameter(grid, *parameter, parameter->master);
                if (writer) writer->write(name, whole);
            } else if (writer) {
                const Shape& shape = parameter->global_shape;
                const Tensor whole = Tensor::uninitialized(shape, weights.dtype(name));
                weights.read_slice(name, 0, 0, shape.front(), whole);
                writer->write(name, whole);
            }
        }
    }
    if (writer) writer->finish();
}

// Main rank only.
void write_moments(LanguageModel& model,
                   const std::string& checkpoint,
                   const std::string& directory) {
    if (checkpoint.empty() || !has_state(checkpoint, "optimizer")) return;
    const auto old = open_state(checkpoint, "optimizer");
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const Parameter* parameter : model.parameters()) {
        if (!parameter->trained) continue;
        for (const char* suffix : {".exp_avg", ".exp_avg_sq"}) {
            declarations.push_back(
                {parameter->name + suffix, DType::kFloat32, parameter->global_shape});
        }
    }
    SafetensorsWriter writer(directory + "/optimizer.safetensors", declarations, {});
    for (const auto& declaration : declarations) {
        const Tensor moments = Tensor::zeros(declaration.shape, DType::kFloat32);
        if (old->contains(declaration.name)) {
            old->read_slice(declaration.name, 0, 0, declaration.shape.front(), moments);
        }
        writer.write(declaration.name, moments);
    }
    writer.finish();
}

// As of a run that starts from the old one's moments, at its place in the data, and has made no step. Main rank only.
void write_run_state(LanguageModel& model,
                     const std::string& checkpoint,
                     const std::string& directory) {
    const std::string path = checkpoint + "/trainer.json";
    if (checkpoint.empty() || !fs::exists(path)) return;
    RunState state = parse_run_state(read_file(path), path);
    state.updates_before += state.updates;
    state.step = state.updates = 0;
    state.model = model.description();
    state.alarms = RunState().alarms;
    write_file_atomically(directory + "/trainer.json", to_json(state));
}

}  // namespace

std::string write_retrofitted(const ProcessGrid& grid,
                              LanguageModel& model,
                              const TensorSource& weights,
                              const std::string& checkpoint,
                              const std::string& run) {
    const CheckpointStore store(run + "/checkpoints", 0);
    const bool main = model.is_main_rank();
    const std::string directory = main ? store.begin(0) : std::string();
    write_model(grid, model, weights, directory);
    if (main) {
        write_moments(model, checkpoint, directory);
        write_run_state(model, checkpoint, directory);
        store.commit(0);
    }
    grid.world().barrier();
    return store.path(0);
}

}  // namespace evenkeel
