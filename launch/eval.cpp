// evenkeel eval: the validation loss of a saved model beside what counting bytes reaches.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "framework/data/byte_dataset.h"
#include "launch/commands.h"
#include "launch/eval_logits.h"
#include "launch/saved_run.h"

namespace evenkeel {

void run_eval(const EvalCommand& command, Communicator& world) {
    if (!command.tokens.empty()) return eval_tokens(command, world);
    SavedRun run = open_saved_run(command.run, command.overrides, world.size());
    EVENKEEL_CHECK_CODE(reads_bytes(run), ErrorCode::kConfig, "eval", command.run,
                        ": got a model with a vocabulary of ", run.config.model.vocab_size,
                        ", which is not bytes, and no tokens; want --tokens FILE: a .safetensors "
                        "file with a tensor `tokens` [N, T] of ids that the model's own tokenizer "
                        "has made");
    EVENKEEL_CHECK_CODE(!run.config.data.path.empty(), ErrorCode::kConfig, "eval", command.run,
                        ": names no text; want --set data.path=TEXT for the loss on its held-out "
                        "part, or --tokens FILE, with --logits OUT for the logits");
    run.config.validate(world.size());
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    const TrainerConfig& trainer = run.config.trainer;
    const ByteDataset data(run.config.data, trainer.seq_len);
    LanguageModel model(grid, run.config.model, static_cast<std::uint64_t>(trainer.seed));
    model.load_weights(*run.weights);
    const double loss = evaluate(model, data, trainer.eval_sequences, trainer.micro_batch_size);
    if (!model.is_main_rank()) return;
    const std::int64_t available = data.validation_sequences();
    const std::int64_t sequences =
        trainer.eval_sequences == 0 ? available : std::min(trainer.eval_sequences, available);

    if (command.json) {
        const nlohmann::ordered_json out = {{"checkpoint", run.checkpoint},
                                            {"step", run.step},
                                            {"sequences", sequences},
                                            {"tokens", sequences * trainer.seq_len},
                                            {"validation_loss", loss},
                                            {"bits_per_byte", loss / std::numbers::ln2},
                                            {"unigram_entropy", data.unigram_entropy()},
                                            {"bigram_entropy", data.bigram_entropy()}};
        std::cout << out.dump(2) << "\n";
        return;
    }
    std::cout << "checkpoint       " << run.checkpoint << "\nvalidation loss  "
              << format("%.4f", loss) << " nats/byte = " << format("%.4f", loss / std::numbers::ln2)
              << " bits/byte\nmeasured on      " << sequences << " of " << available
              << " held-out sequences of " << trainer.seq_len << " tokens\nbigram entropy   "
              << format("%.4f", data.bigram_entropy())
              << " nats/byte of the same text\nunigram entropy  "
              << format("%.4f", data.unigram_entropy()) << " nats/byte\n";
}

}  // namespace evenkeel
