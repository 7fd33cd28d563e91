// evenkeel eval: the validation loss of a saved model beside what counting bytes reaches.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "launch/commands.h"
#include "launch/eval_logits.h"
#include "launch/saved_run.h"

namespace evenkeel {

void run_eval(const EvalCommand& command, Communicator& world) {
    if (!command.tokens.empty()) return write_logits(command, world);
    SavedRun run = open_saved_run(command.run, command.overrides, world.size());
    run.config.validate(world.size());
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    const TrainerConfig& trainer = run.config.trainer;
    const ByteDataset data(run.config.data, trainer.seq_len);
    LanguageModel model(grid, run.config.model, static_cast<std::uint64_t>(trainer.seed));
    model.load_weights(*run.weights);
    const double loss = evaluate(model, data, trainer.eval_sequences, trainer.micro_batch_size);
    if (!model.is_main_rank()) return;

    if (command.json) {
        const nlohmann::ordered_json out = {{"checkpoint", run.checkpoint},
                                            {"step", run.step},
                                            {"validation_loss", loss},
                                            {"bits_per_byte", loss / std::numbers::ln2},
                                            {"unigram_entropy", data.unigram_entropy()},
                                            {"bigram_entropy", data.bigram_entropy()}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "checkpoint       " << run.checkpoint << "\nvalidation loss  "
              << format("%.4f", loss) << " nats/byte = " << format("%.4f", loss / std::numbers::ln2)
              << " bits/byte\nbigram entropy   " << format("%.4f", data.bigram_entropy())
              << " nats/byte of the same text\nunigram entropy  "
              << format("%.4f", data.unigram_entropy()) << " nats/byte\n";
}

}  // namespace evenkeel
