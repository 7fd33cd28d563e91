// evenkeel sample: text from a saved model.
#include <iostream>

#include "launch/commands.h"
#include "launch/run_text.h"
#include "launch/saved_run.h"
#include "model/retrofit/retrofit.h"
#include "parallel/watchdog.h"

namespace evenkeel {

void run_sample(const SampleCommand& command, Communicator& world) {
    SavedRun run = open_saved_run(command.run, command.overrides, readers_of(world));
    const auto tokenizer = tokenizer_of_run(run.config);
    EVENKEEL_CHECK_CODE(
        tokenizer != nullptr || reads_bytes(run), ErrorCode::kConfig, "sample", command.run,
        ": this model, whose vocabulary of ", run.config.model.vocab_size,
        " is not bytes, has no tokenizer here; want --set data.tokenizer=tokenizer.model, a "
        "SentencePiece model (the tokenizer.json of Hugging Face can't be read)");
    RunConfig checked = run.config;
    if (checked.data.path.empty()) checked.data.path = "none.bin";  // none is read
    checked.validate(world.size());
    start_watchdog(world, {.timeout_seconds = run.config.parallel.timeout_seconds});
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    LanguageModel model(grid, run.config.model,
                        static_cast<std::uint64_t>(run.config.trainer.seed));
    model.load_weights(*run.weights);
    check_finite_weights(grid, model, "sample");
    const std::string text = generate_text(model, tokenizer.get(), command.prompt,
                                           {.tokens = command.tokens,
                                            .temperature = command.temperature,
                                            .seed = static_cast<std::uint64_t>(command.seed)});
    if (model.is_main_rank()) std::cout << printable(text) << "\n";
}

}  // namespace evenkeel
