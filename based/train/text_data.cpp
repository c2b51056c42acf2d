#include "based/train/text_data.h"

#include <algorithm>
#include <cmath>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/log.h"
#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "based/data/documents.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

bool is_packed(const std::string& path) { return is_folder(path) || path.ends_with(".tokens"); }

// The training sets, whichever key names them.
std::vector<TextSetConfig> training_sets(const TextDataConfig& data) {
  return data.sets.empty() ? std::vector<TextSetConfig>{{data.train, 1}} : data.sets;
}

void log_encoding(const TextDataConfig& data, int64_t ranks) {
  if (ranks == 1) return;
  for (const TextSetConfig& set : training_sets(data))
    if (!is_packed(set.path))
      log_info(set.path + " is not packed: each of the " + std::to_string(ranks) +
               " ranks encodes it and keeps it in memory; `based data pack` does this once");
}

std::unique_ptr<Tokenizer> learn_tokenizer(const TextDataConfig& data) {
  BpeTrainer trainer({data.bpe_vocab_size, 2, {}});
  for (const TextSetConfig& set : training_sets(data)) {
    if (is_packed(set.path)) {
      throw UsageError((data.sets.empty() ? "data.train" : set.path) +
                       " is packed already: data.tokenizer must be the folder of the tokenizer it was packed with, bytes or dna");
    }
    read_documents(set.path, TextFormat::by_name, [&](std::string_view text) { trainer.add(text); });
  }
  auto tokenizer = std::make_unique<BpeTokenizer>(trainer.train());
  if (tokenizer->vocab_size() < data.bpe_vocab_size)
    log_info("data.bpe_vocab_size is " + std::to_string(data.bpe_vocab_size) + ", and the text gives " +
             std::to_string(tokenizer->vocab_size()) + " tokens: no other pair occurs twice");
  return tokenizer;
}

// The tokenizer that the run started with, from its checkpoint. The folder data.tokenizer need not exist any more; if it does and holds
// another tokenizer, that is an error, because the run would ignore it silently.
std::unique_ptr<Tokenizer> known_tokenizer(const TextDataConfig& data, const std::string& known) {
  auto tokenizer = make_tokenizer(known);
  const bool named = data.tokenizer == "bytes" || data.tokenizer == "dna" || (data.tokenizer != "bpe" && is_folder(data.tokenizer));
  if (named && make_tokenizer(data.tokenizer)->hash() != tokenizer->hash())
    throw UsageError("--resume: data.tokenizer = " + data.tokenizer + " is not the tokenizer that the run began with (" + known +
                     "); put it back, or train into another folder");
  return tokenizer;
}

struct Tokens {
  std::vector<int32_t> ids;
  std::vector<uint64_t> starts;   // indices of the documents' first tokens
  std::vector<uint32_t> sources;  // [documents], numbered as in DocumentSources
  SourceNames names;

  // Removes the last `count` tokens and returns them as a set of their own. A document that is cut starts anew there.
  Tokens split(size_t count) {
    if (starts.empty()) return {};
    const size_t at = ids.size() - count;
    const auto first = static_cast<std::ptrdiff_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin());
    Tokens end{{ids.begin() + static_cast<std::ptrdiff_t>(at), ids.end()}, {0}, {sources.begin() + first - 1, sources.end()}, names};
    for (auto start = starts.begin() + first; start != starts.end(); ++start) end.starts.push_back(*start - at);
    const bool cut = starts[static_cast<size_t>(first) - 1] < at;  // the document before `first` keeps its tokens before `at`
    ids.resize(at);
    starts.resize(static_cast<size_t>(first - (cut ? 0 : 1)));
    sources.resize(starts.size());
    return end;
  }
};

Tokens encode_file(const std::string& path, const Tokenizer& tokenizer) {
  Tokens tokens;
  const auto end_of_text = tokenizer.end_of_text();
  read_blocks(path, TextFormat::by_name, [&](const DocumentBlock& block) {
    parse_block(block, [&](const Document& document) {
      const size_t start = tokens.ids.size();
      tokenizer.encode_text(document.text, tokens.ids);
      if (tokens.ids.size() == start) return;
      tokens.starts.push_back(start);
      tokens.sources.push_back(tokens.names.number(document.source));
      if (end_of_text) tokens.ids.push_back(*end_of_text);
    });
  });
  return tokens;
}

using Set = std::shared_ptr<const TokenDataset>;

void require_window(const TokenDataset& set, int64_t length) {
  if (set.tokens() > length) return;
  throw Error(set.path() + ": gives " + std::to_string(set.tokens()) + " tokens, too few for train.length = " + std::to_string(length));
}

Set make_set(Tokens tokens, const std::string& path, const Tokenizer& tokenizer) {
  DocumentSources sources{std::move(tokens.sources), tokens.names.names()};
  return std::make_shared<TokenDataset>(path, std::move(tokens.ids), std::move(tokens.starts), tokenizer, std::move(sources));
}

Set open_set(const std::string& path, const Tokenizer& tokenizer) {
  if (!is_packed(path)) return make_set(encode_file(path, tokenizer), path, tokenizer);
  auto set = std::make_shared<TokenDataset>(path);
  set->require_tokenizer(tokenizer);
  return set;
}

}  // namespace

std::string training_paths(const TextDataConfig& data) {
  std::string paths;
  for (const TextSetConfig& set : training_sets(data)) paths += (paths.empty() ? "" : ", ") + set.path;
  return paths;
}

void check_text_data(const TextDataConfig& data) {
  if (data.train.empty() == data.sets.empty())
    throw UsageError("data must name either one text, data.train, or several, [[data.sets]] with path and weight");
  for (const TextSetConfig& set : training_sets(data)) {
    const std::string key = data.sets.empty() ? "data.train" : "data.sets";
    if (!path_exists(set.path)) throw Error(set.path + ": no such file or folder; " + key + " names it");
    if (!std::isfinite(set.weight) || set.weight <= 0)
      throw UsageError("data.sets: the weight of " + set.path + " must be a positive number, got " + std::to_string(set.weight));
    if (data.valid.empty() && (is_packed(set.path) || !data.sets.empty())) {
      throw UsageError((data.sets.empty() ? "data.train is packed" : "data.sets names several texts") +
                       std::string(": data.valid must name a held-out set, packed or text"));
    }
  }
  if (!data.valid.empty() && !path_exists(data.valid)) throw Error(data.valid + ": no such file or folder; data.valid names it");
}

TextData load_text_data(const TextDataConfig& data, int64_t length, const std::string& known, int64_t ranks) {
  check_text_data(data);
  log_encoding(data, ranks);
  TextData text;
  if (!known.empty())
    text.tokenizer = known_tokenizer(data, known);
  else
    text.tokenizer = data.tokenizer == "bpe" ? learn_tokenizer(data) : make_tokenizer(data.tokenizer);
  std::vector<WeightedSet> sets;
  if (!data.valid.empty()) {
    for (const TextSetConfig& set : training_sets(data)) sets.push_back({open_set(set.path, *text.tokenizer), set.weight});
    text.valid = open_set(data.valid, *text.tokenizer);
  } else {
    Tokens tokens = encode_file(data.train, *text.tokenizer);
    Tokens end = tokens.split(static_cast<size_t>(std::ceil(static_cast<double>(tokens.ids.size()) * data.valid_fraction)));
    sets.push_back({make_set(std::move(tokens), data.train, *text.tokenizer), 1});
    text.valid = make_set(std::move(end), data.train, *text.tokenizer);
  }
  for (const WeightedSet& set : sets) require_window(*set.data, length);
  require_window(*text.valid, length);
  text.train = std::make_shared<TokenMixture>(std::move(sets));
  return text;
}

Batch to_batch(const TokenBatch& tokens, torch::Device device) {
  const auto tensor = [&](const std::vector<int32_t>& values) {
    return runtime::to_device(torch::tensor(values, torch::kInt).to(torch::kLong), device);
  };
  const int64_t count = tokens.rows * tokens.length;
  const bool whole_rows = static_cast<int64_t>(tokens.cu_seqlens.size()) == tokens.rows + 1;
  return {tensor(tokens.tokens), tensor(tokens.targets),
          whole_rows ? Sequences::equal(tokens.rows, tokens.length, device) : Sequences::packed(tokens.cu_seqlens, count, device),
          tokens.windows, std::count_if(tokens.targets.begin(), tokens.targets.end(), [](int32_t target) { return target >= 0; })};
}

}  // namespace based
