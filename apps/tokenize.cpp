#include <cerrno>
#include <fstream>
#include <iostream>

#include "apps/command.h"
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/output_folder.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "based/data/documents.h"
#include "based/data/json_lines.h"

namespace based::apps {
namespace tokenize_command {

struct TrainOptions {
  BpeTrainConfig config;
  std::vector<std::string> files;
  std::string out, format = "auto";
  bool overwrite = false, json = false;
};

void train(const TrainOptions& options) {
  const TextFormat format = text_format(options.format);
  BpeTrainer trainer(options.config);
  OutputFolder folder(options.out, {.own = {tokenizer_holding()}, .foreign = {model_holding(), checkpoints_holding()}}, options.overwrite);
  int64_t documents = 0, bytes = 0;
  for (const std::string& file : options.files) {
    read_documents(file, format, [&](std::string_view text) {
      trainer.add(text);
      ++documents;
      bytes += static_cast<int64_t>(text.size());
    });
  }
  const BpeTokenizer tokenizer(trainer.train());
  tokenizer.save(options.out);
  folder.keep();
  if (tokenizer.vocab_size() < options.config.vocab_size) {
    print_message("fewer tokens than the " + std::to_string(options.config.vocab_size) + " asked for: no other pair occurs " +
                  std::to_string(options.config.min_frequency) + " times");
  }
  print_line(options.json
                 ? dump_json({{"tokens", tokenizer.vocab_size()}, {"documents", documents}, {"bytes", bytes}, {"folder", options.out}})
                 : grouped(tokenizer.vocab_size()) + " tokens from " + format_bytes(static_cast<double>(bytes)) + " in " +
                       grouped(documents) + " documents, written to " + options.out);
}

void setup_train(CommandLine app) {
  auto options = std::make_shared<TrainOptions>();
  app.add_required("files", options->files, "files of text, JSON lines or FASTA, also .zst");
  app.add_required("--out", options->out, "folder for vocab.json, merges.txt and tokenizer.json; it must hold no tokenizer and no model");
  app.add_option("--vocab-size", options->config.vocab_size, "vocabulary size, including special tokens and the 256 bytes");
  app.add_option("--min-frequency", options->config.min_frequency, "pairs that occur less often are not merged");
  app.add_option("--special", options->config.specials, "special tokens; they get the first ids");
  app.add_option("--format", options->format, "format of the files: auto (by name), text, jsonl or fasta");
  app.add_flag("--overwrite", options->overwrite, "replace the tokenizer in --out");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--format", {"auto", "text", "jsonl", "fasta"});
  app.callback([options] { train(*options); });
}

struct LinesOptions {
  std::string tokenizer, file;
  bool special = false;
};

template <class Run>
void with_input(const std::string& file, Run run) {
  std::ios::sync_with_stdio(false);
  if (file.empty()) {
    run(std::cin, "standard input");
  } else {
    std::ifstream in(file);
    if (!in) throw Error(file + ": cannot open: " + system_message(errno));
    run(in, file);
  }
}

void encode(const LinesOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  with_input(options.file, [&](std::istream& in, const std::string& name) {
    encode_json_lines(*tokenizer, options.special ? Specials::recognised : Specials::as_text, in, name, output());
  });
}

void decode(const LinesOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  with_input(options.file, [&](std::istream& in, const std::string& name) { decode_json_lines(*tokenizer, in, name, output()); });
}

void setup_lines(CommandLine app, bool encodes) {
  auto options = std::make_shared<LinesOptions>();
  app.add_required("--tokenizer", options->tokenizer, "the tokenizer's folder, 'bytes' or 'dna'");
  app.add_option("file", options->file, "file of JSON lines (default: standard input)");
  if (encodes) app.add_flag("--special", options->special, "recognise special tokens in the text");
  app.offer("--tokenizer", {"bytes", "dna"}, true);
  app.callback([options, encodes] { encodes ? encode(*options) : decode(*options); });
}

struct InspectOptions {
  std::string tokenizer;
  std::vector<int64_t> ids;
  bool json = false;
};

void inspect(const InspectOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  const Vocabulary& vocabulary = tokenizer->vocabulary();
  const std::string hash = hex(tokenizer->hash());
  Json specials = Json::object(), tokens = Json::object();
  for (const int32_t id : vocabulary.specials) specials[vocabulary.tokens[static_cast<size_t>(id)]] = id;
  for (const int64_t id : options.ids) {
    if (id < 0 || id >= tokenizer->vocab_size()) {
      throw UsageError("--id must be from 0 to " + std::to_string(tokenizer->vocab_size() - 1) + ", got " + std::to_string(id));
    }
    tokens[std::to_string(id)] = in_quotes(tokenizer->token_bytes(static_cast<int32_t>(id)));
  }
  if (options.json) {
    print_line(dump_json({{"tokens", tokenizer->vocab_size()},
                          {"merges", vocabulary.merges.size()},
                          {"specials", specials},
                          {"hash", hash},
                          {"ids", tokens}}));
    return;
  }
  print_line(grouped(tokenizer->vocab_size()) + " tokens, " + grouped(static_cast<int64_t>(vocabulary.merges.size())) + " merges, hash " +
             hash);
  for (const auto& [text, id] : specials.items()) print_line("special " + dump_json(id) + " " + in_quotes(text));
  for (const auto& [id, text] : tokens.items()) print_line(id + " " + text.get<std::string>());
}

void setup_inspect(CommandLine app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_required("--tokenizer", options->tokenizer, "the tokenizer's folder, 'bytes' or 'dna'");
  app.add_option("--id", options->ids, "print the bytes of this id; may be given several times");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--tokenizer", {"bytes", "dna"}, true);
  app.callback([options] { inspect(*options); });
}

void setup(CommandLine app) {
  setup_train(app.add_subcommand("train", "Train a byte-level BPE tokenizer on text"));
  setup_lines(app.add_subcommand("encode", "Convert JSON lines {\"text\"} to {\"ids\"}"), true);
  setup_lines(app.add_subcommand("decode", "Convert JSON lines {\"ids\"} to {\"text\"}"), false);
  setup_inspect(app.add_subcommand("inspect", "Print the size, special tokens and hash of a tokenizer"));
}

}  // namespace tokenize_command

const Command command_tokenize{"tokenize", "Tokenizers: train, encode, decode, inspect", tokenize_command::setup};

}  // namespace based::apps
