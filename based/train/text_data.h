// The text that a language model trains on: token shards, or files that are tokenised in memory; and its batches.
#pragma once
#include <memory>
#include <string>

#include "based/core/config.h"
#include "based/data/loader.h"
#include "based/train/loop.h"

namespace based {

struct TextDataConfig {
  std::string train;              // relative to the working folder
  std::string valid;              // held out; empty: the end of `train`
  double valid_fraction = 0.05;   // of `train`, where there is no `valid`
  std::string tokenizer = "bpe";  // bpe: learnt from `train`; bytes; or a tokenizer's folder
  int64_t bpe_vocab_size = 1024;
  bool documents = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("train", train, "a folder of token shards (`based data pack`), or a file of text: .txt, .jsonl, …, also .zst");
    field("valid", valid, "the same, held out; empty: the end of train is held out, which must then be a file of text");
    field("valid_fraction", valid_fraction, "share of train that is held out where there is no valid");
    field("tokenizer", tokenizer, "bpe: learnt from train; bytes; or a tokenizer's folder (shards need the one they were packed with)");
    field("bpe_vocab_size", bpe_vocab_size, "tokens that a learnt tokenizer has");
    field("documents", documents, "documents keep apart: no token sees another document; otherwise windows reach over their ends");
  }
};

struct TextData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const TokenDataset> train, valid;  // each longer than a window
};

// `known`: the folder of a tokenizer in place of data.tokenizer, for a run that goes on; empty: none. Throws UsageError for keys that do
// not go together, Error for files.
TextData load_text_data(const TextDataConfig& data, int64_t length, const std::string& known = {});

Batch to_batch(const TokenBatch& tokens, torch::Device device = torch::kCPU);

}  // namespace based
