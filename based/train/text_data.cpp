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

std::unique_ptr<Tokenizer> learn_tokenizer(const TextDataConfig& data) {
  if (is_packed(data.train)) {
    throw UsageError("data.train is packed already: data.tokenizer must be the folder of the tokenizer it was packed with, or bytes");
  }
  BpeTrainer trainer({data.bpe_vocab_size, 2, {}});
  read_documents(data.train, TextFormat::by_name, [&](std::string_view text) { trainer.add(text); });
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
  const bool named = data.tokenizer == "bytes" || (data.tokenizer != "bpe" && is_folder(data.tokenizer));
  if (named && make_tokenizer(data.tokenizer)->hash() != tokenizer->hash())
    throw UsageError("--resume: data.tokenizer = " + data.tokenizer + " is not the tokenizer that the run began with (" + known +
                     "); put it back, or train into another folder");
  return tokenizer;
}

struct Tokens {
  std::vector<int32_t> ids;
  std::vector<uint64_t> starts;  // indices of the documents' first tokens

  // Removes the last `count` tokens and returns them as a set of their own.
  Tokens split(size_t count) {
    const size_t at = ids.size() - count;
    Tokens end{{ids.begin() + static_cast<int64_t>(at), ids.end()}, {0}};
    size_t kept = 0;
    for (const uint64_t start : starts) {
      if (start < at) ++kept;
      if (start > at) end.starts.push_back(start - at);
    }
    ids.resize(at);
    starts.resize(kept);
    return end;
  }
};

Tokens encode_file(const std::string& path, const Tokenizer& tokenizer) {
  Tokens tokens;
  const auto end_of_text = tokenizer.end_of_text();
  read_documents(path, TextFormat::by_name, [&](std::string_view text) {
    const size_t start = tokens.ids.size();
    tokenizer.encode_text(text, tokens.ids);
    if (tokens.ids.size() == start) return;
    tokens.starts.push_back(start);
    if (end_of_text) tokens.ids.push_back(*end_of_text);
  });
  return tokens;
}

using Set = std::shared_ptr<const TokenDataset>;

Set checked(const Set& set, const std::string& path, int64_t length) {
  if (set->tokens() > length) return set;
  throw Error(path + ": gives " + std::to_string(set->tokens()) + " tokens, too few for train.length = " + std::to_string(length));
}

Set make_set(Tokens tokens, const std::string& path, const Tokenizer& tokenizer) {
  return std::make_shared<TokenDataset>(path, std::move(tokens.ids), std::move(tokens.starts), tokenizer);
}

Set open_set(const std::string& path, const Tokenizer& tokenizer) {
  if (!is_packed(path)) return make_set(encode_file(path, tokenizer), path, tokenizer);
  auto set = std::make_shared<TokenDataset>(path);
  set->require_tokenizer(tokenizer);
  return set;
}

}  // namespace

TextData load_text_data(const TextDataConfig& data, int64_t length, const std::string& known) {
  if (!path_exists(data.train)) throw Error(data.train + ": no such file or folder; data.train names it");
  if (data.valid.empty() && is_packed(data.train)) {
    throw UsageError("data.train is packed: data.valid must name a held-out set, packed or text");
  }
  TextData text;
  if (!known.empty())
    text.tokenizer = known_tokenizer(data, known);
  else
    text.tokenizer = data.tokenizer == "bpe" ? learn_tokenizer(data) : make_tokenizer(data.tokenizer);
  if (!data.valid.empty()) {
    text.train = open_set(data.train, *text.tokenizer);
    text.valid = open_set(data.valid, *text.tokenizer);
  } else {
    Tokens tokens = encode_file(data.train, *text.tokenizer);
    Tokens end = tokens.split(static_cast<size_t>(std::ceil(static_cast<double>(tokens.ids.size()) * data.valid_fraction)));
    text.train = make_set(std::move(tokens), data.train, *text.tokenizer);
    text.valid = make_set(std::move(end), data.train, *text.tokenizer);
  }
  checked(text.train, data.train, length);
  checked(text.valid, data.valid.empty() ? data.train : data.valid, length);
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
