// evenkeel sample: text from a saved model.
#include <iostream>

#include "launch/commands.h"
#include "launch/saved_run.h"
#include "model/generate.h"

namespace evenkeel {

void run_sample(const SampleCommand& command, Communicator& world) {
    SavedRun run = open_saved_run(command.run, command.overrides, world.size());
    run.config.validate(world.size());
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    LanguageModel model(grid, run.config.model,
                        static_cast<std::uint64_t>(run.config.trainer.seed));
    model.load_weights(*run.weights);
    const std::string text = generate(model, command.prompt,
                                      {.tokens = command.tokens,
                                       .temperature = command.temperature,
                                       .seed = static_cast<std::uint64_t>(command.seed)});
    if (model.is_main_rank()) std::cout << printable(text) << "\n";
}

}  // namespace evenkeel
