#include <algorithm>
#include <limits>
#include <thread>

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
  int64_t shard_tokens = ShardWriter::kTokens, threads = 0, shuffle_seed = -1;
  bool json = false;
};

// The processors that this process may use.
int64_t processors() { return std::max<int64_t>(1, std::thread::hardware_concurrency()); }

void pack(const PackOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  PackSettings settings;
  settings.shard_tokens = options.shard_tokens;
  settings.threads = options.threads == 0 ? processors() : options.threads;
  if (options.shuffle_seed >= 0) settings.shuffle_seed = options.shuffle_seed;
  settings.quiet = false;
  const PackReport report = pack_files(options.files, options.format, *tokenizer, options.out, settings);
  if (options.json) {
    print_line(dump_json({{"documents", report.documents},
                          {"empty", report.empty},
                          {"tokens", report.tokens},
                          {"bytes", report.bytes},
                          {"shards", report.shards},
                          {"sources", report.sources},
                          {"end_of_text", report.end_of_text},
                          {"folder", options.out}}));
    return;
  }
  print_line(grouped(report.tokens) + " tokens of " + format_bytes(static_cast<double>(report.bytes)) + " in " + grouped(report.documents) +
             " documents, " + grouped(report.shards) + " shards in " + options.out);
  if (report.sources > 0) print_line("the documents are from " + grouped(report.sources) + " sources (meta.pile_set_name)");
  if (report.empty > 0) print_line(grouped(report.empty) + " empty documents left out");
  if (!report.end_of_text) print_line("the tokenizer has no <|endoftext|>: no token separates the documents");
}

void setup_pack(CommandLine app) {
  auto options = std::make_shared<PackOptions>();
  app.add_required("files", options->files, "files of text, JSON lines or FASTA, also .zst");
  app.add_required("--tokenizer", options->tokenizer, "the tokenizer's folder, 'bytes' or 'dna'");
  app.add_required("--out", options->out, "folder for the shards; it must not hold other shards");
  app.add_option("--format", options->format, "format of the files: auto (by name), text, jsonl or fasta");
  app.add_option("--shard-tokens", options->shard_tokens, "tokens per shard");
  app.add_option("--threads", options->threads, "threads that encode; 0: one for each processor; the shards do not depend on it",
                 {0, 1024});
  app.add_option("--shuffle-seed", options->shuffle_seed, "shuffle the documents by this seed; -1: keep the order of the files",
                 {-1, std::numeric_limits<int64_t>::max()});
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--format", {"auto", "text", "jsonl", "fasta"});
  app.offer("--tokenizer", {"bytes", "dna"}, true);
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
  const std::vector<TokenDataset::SourceSize> sizes = data.source_sizes();
  if (options.json) {
    Json sources = Json::object();
    for (size_t i = 0; i < data.source_names().size(); ++i)
      sources[data.source_names()[i]] = {{"documents", sizes[i].documents}, {"tokens", sizes[i].tokens}};
    print_line(dump_json({{"tokens", data.tokens()},
                          {"documents", data.documents()},
                          {"vocab_size", data.vocab_size()},
                          {"tokenizer_hash", tokenizer},
                          {"hash", hash},
                          {"sources", sources}}));
    return;
  }
  print_line(grouped(data.tokens()) + " tokens in " + grouped(data.documents()) + " documents, vocabulary " + grouped(data.vocab_size()) +
             ", tokenizer " + tokenizer + ", hash " + hash + ": whole");
  const auto print_source = [](const std::string& name, const TokenDataset::SourceSize& size) {
    print_line("  " + name + ": " + grouped(size.tokens) + " tokens in " + grouped(size.documents) + " documents");
  };
  if (data.source_names().empty()) return;
  for (size_t i = 0; i < data.source_names().size(); ++i) print_source(in_quotes(data.source_names()[i]), sizes[i]);
  if (sizes.back().documents > 0) print_source("without a source", sizes.back());
}

void setup_inspect(CommandLine app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_required("path", options->path, "folder of shards");
  app.add_option("--tokenizer", options->tokenizer, "a tokenizer's folder, 'bytes' or 'dna': fail if the shards were packed with another");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--tokenizer", {"bytes", "dna"}, true);
  app.callback([options] { inspect(*options); });
}

void setup(CommandLine app) {
  setup_pack(app.add_subcommand("pack", "Encode text into token shards"));
  setup_inspect(app.add_subcommand("inspect", "Check a folder of shards and print its contents"));
}

}  // namespace data_command

const Command command_data{"data", "Token shards: pack text, check a folder of shards", data_command::setup};

}  // namespace based::apps
