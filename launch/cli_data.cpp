#include <limits>

#include "launch/cli.h"

namespace evenkeel {
namespace {

void add_data_build(CLI::App& data, DataBuildCommand& command, Choice& choice) {
    CLI::App& app = *data.add_subcommand("build", "Make files of tokens from text");
    CorpusOptions& options = command.options;
    app.add_option("input", options.inputs,
                   "Files of text, of JSON lines (.jsonl, .json), or directories of such files")
        ->required();
    app.add_option("--out", options.output, "PREFIX: PREFIX.bin, .idx and .json are made")
        ->required()
        ->type_name("PREFIX");
    app.add_option("--tokenizer", options.tokenizer, "bytes, or a SentencePiece model")
        ->capture_default_str()
        ->type_name("NAME");
    app.add_option("--text-key", options.text_key, "Of JSON lines: where the text is")
        ->capture_default_str()
        ->type_name("KEY");
    app.add_option("--separator", options.separator,
                   "The line between two documents of a text; default: a file is a document")
        ->type_name("LINE");
    app.add_option("--end-of-document", options.end_of_document,
                   "Token appended to each document, -1 for none; default: byte 0, or the model's "
                   "own")
        ->type_name("ID")
        ->check(CLI::Range(-1, std::numeric_limits<int>::max()));
    app.add_option("--threads", options.threads, "Default: all cores")
        ->type_name("N")
        ->check(CLI::Range(1, 4096));
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel data build corpus.jsonl --out data/corpus --tokenizer tokenizer.model\n"
        "  evenkeel data build /usr/share/games/fortunes/computers --separator % --out "
        "data/fortunes\n"
        "  evenkeel train --config configs/tiny.json --set data.path=data/fortunes.bin\n\n"
        "The files are Megatron-LM's; they appear when they are complete. docs/data.md tells "
        "more.");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_data_build(command);
        };
    });
}

void add_data_inspect(CLI::App& data, DataInspectCommand& command, Choice& choice) {
    CLI::App& app = *data.add_subcommand("inspect", "What a file of tokens holds");
    app.add_option("path", command.path, "FILE.bin, or the PREFIX of FILE.bin and FILE.idx")
        ->required();
    app.add_option("--tokenizer", command.tokenizer,
                   "bytes, or a SentencePiece model; default: what PREFIX.json names")
        ->type_name("NAME");
    app.add_option("--tokens", command.tokens, "How many of the first tokens to show")
        ->capture_default_str()
        ->check(CLI::Range(0, 1 << 20));
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel data inspect data/corpus\n"
        "  evenkeel data inspect fineweb_train_000001.bin --json");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_data_inspect(command);
        };
    });
}

}  // namespace

void add_data(CLI::App& program,
              DataBuildCommand& build,
              DataInspectCommand& inspect,
              Choice& choice) {
    CLI::App& app = *program.add_subcommand("data", "Make files of tokens, and look at them");
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  evenkeel data build corpus.jsonl --out data/corpus\n"
        "  evenkeel data inspect data/corpus");
    add_data_build(app, build, choice);
    add_data_inspect(app, inspect, choice);
}

}  // namespace evenkeel
