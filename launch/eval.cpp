// evenkeel eval: the validation loss of a saved model beside what counting bytes reaches.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>

#include "framework/data/byte_dataset.h"
#include "framework/json.h"
#include "launch/commands.h"
#include "launch/eval_logits.h"
#include "launch/run_text.h"
#include "launch/saved_run.h"
#include "model/retrofit/retrofit.h"
#include "parallel/watchdog.h"

namespace evenkeel {

void run_eval(const EvalCommand& command, Communicator& world) {
    if (!command.tokens.empty()) return eval_tokens(command, world);
    SavedRun run = open_saved_run(command.run, command.overrides, readers_of(world));
    EVENKEEL_CHECK_CODE(reads_bytes(run) || run.config.data.has_tokens(), ErrorCode::kConfig,
                        "eval", command.run, ": got a model with a vocabulary of ",
                        run.config.model.vocab_size,
                        ", which is not bytes, and no tokens; want --set data.path=FILE.bin, or "
                        "--tokens FILE: a .safetensors file with a tensor `tokens` [N, T] of ids "
                        "that the model's own tokenizer has made");
    EVENKEEL_CHECK_CODE(!run.config.data.path.empty(), ErrorCode::kConfig, "eval", command.run,
                        ": names no text; want --set data.path=TEXT for the loss on its held-out "
                        "part, or --tokens FILE, with --logits OUT for the logits");
    run.config.validate(world.size());
    start_watchdog(world, {.timeout_seconds = run.config.parallel.timeout_seconds});
    const ProcessGrid grid(world, run.config.parallel, run.config.device);
    const TrainerConfig& trainer = run.config.trainer;
    const auto data = open_dataset(run.config.data, trainer.seq_len, run.config.model.vocab_size);
    LanguageModel model(grid, run.config.model, static_cast<std::uint64_t>(trainer.seed));
    model.load_weights(*run.weights);
    check_finite_weights(grid, model, "eval");
    const double loss = evaluate(model, *data, trainer.eval_sequences, trainer.micro_batch_size);
    if (!model.is_main_rank()) return;
    const std::int64_t available = data->validation_sequences();
    const std::int64_t sequences =
        trainer.eval_sequences == 0 ? available : std::min(trainer.eval_sequences, available);
    const auto* const bytes = dynamic_cast<const ByteDataset*>(data.get());

    if (command.json) {
        nlohmann::ordered_json out = {{"checkpoint", run.checkpoint},
                                      {"step", run.step},
                                      {"sequences", sequences},
                                      {"tokens", sequences * trainer.seq_len},
                                      {"validation_loss", loss}};
        if (bytes != nullptr) {
            out["bits_per_byte"] = loss / std::numbers::ln2;
            out["unigram_entropy"] = bytes->unigram_entropy();
            out["bigram_entropy"] = bytes->bigram_entropy();
        }
        std::cout << out.dump(2) << "\n";
        return;
    }
    const char* const unit = unit_of(run.config);
    std::cout << "checkpoint       " << run.checkpoint << "\nvalidation loss  "
              << format("%.4f", loss) << " nats/" << unit << " = "
              << format("%.4f", loss / std::numbers::ln2) << " bits/" << unit
              << "\nmeasured on      " << sequences << " of " << available
              << " held-out sequences of " << trainer.seq_len << " tokens\n";
    if (bytes == nullptr) return;
    std::cout << "bigram entropy   " << format("%.4f", bytes->bigram_entropy())
              << " nats/byte of the same text\nunigram entropy  "
              << format("%.4f", bytes->unigram_entropy()) << " nats/byte\n";
}

}  // namespace evenkeel
