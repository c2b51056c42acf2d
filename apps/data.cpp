#include "apps/command.h"
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/data/shards.h"

namespace based::apps {
namespace data_command {

struct PackOptions {
  std::vector<std::string> files;
  std::string tokenizer, out, format = "auto";
  int64_t shard_tokens = ShardWriter::kTokens;
  bool json = false;
};

void pack(const PackOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  const PackReport report = pack_files(options.files, options.format, *tokenizer, options.out, options.shard_tokens);
  if (options.json) {
    print_line(dump_json({{"documents", report.documents},
                          {"empty", report.empty},
                          {"tokens", report.tokens},
                          {"bytes", report.bytes},
                          {"shards", report.shards},
                          {"end_of_text", report.end_of_text},
                          {"folder", options.out}}));
    return;
  }
  print_line(grouped(report.tokens) + " tokens of " + format_bytes(static_cast<double>(report.bytes)) + " in " + grouped(report.documents) +
             " documents, " + grouped(report.shards) + " shards in " + options.out);
  if (report.empty > 0) print_line(grouped(report.empty) + " empty documents left out");
  if (!report.end_of_text) print_line("the tokenizer has no <|endoftext|>: no token separates the documents");
}

void setup_pack(CommandLine app) {
  auto options = std::make_shared<PackOptions>();
  app.add_required("files", options->files, "files of text, JSON lines or FASTA, also .zst");
  app.add_required("--tokenizer", options->tokenizer, "the tokenizer's folder, or 'bytes'");
  app.add_required("--out", options->out, "folder for the shards; it must not hold other shards");
  app.add_option("--format", options->format, "format of the files: auto (by name), text, jsonl or fasta");
  app.add_option("--shard-tokens", options->shard_tokens, "tokens per shard");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { pack(*options); });
}

struct InspectOptions {
  std::string path, tokenizer;
  bool json = false;
};

void inspect(const InspectOptions& options) {
  const TokenDataset data(options.path);
  if (!options.tokenizer.empty()) data.require_tokenizer(*make_tokenizer(options.tokenizer));
  const std::string tokenizer = hex(data.tokenizer_hash()), hash = hex(data.hash());
  print_line(options.json ? dump_json({{"tokens", data.tokens()},
                                       {"documents", data.documents()},
                                       {"vocab_size", data.vocab_size()},
                                       {"tokenizer_hash", tokenizer},
                                       {"hash", hash}})
                          : grouped(data.tokens()) + " tokens in " + grouped(data.documents()) + " documents, vocabulary " +
                                grouped(data.vocab_size()) + ", tokenizer " + tokenizer + ", hash " + hash + ": whole");
}

void setup_inspect(CommandLine app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_required("path", options->path, "folder of shards");
  app.add_option("--tokenizer", options->tokenizer, "a tokenizer's folder, or 'bytes': fail if the shards were packed with another");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { inspect(*options); });
}

void setup(CommandLine app) {
  setup_pack(app.add_subcommand("pack", "Encode text into token shards"));
  setup_inspect(app.add_subcommand("inspect", "Check a folder of shards and print its contents"));
}

}  // namespace data_command

const Command command_data{"data", "Token shards: pack text, check a folder of shards", data_command::setup};

}  // namespace based::apps
