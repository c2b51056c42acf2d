// The training and held-out text of a language model, read from token shards or tokenised in memory, and its batches.
#pragma once
#include <memory>
#include <string>

#include "based/core/config.h"
#include "based/data/loader.h"
#include "based/train/loop.h"

namespace based {

struct TextDataConfig {
  std::string train;              // relative to the working folder
  std::string valid;              // held-out text; empty: the end of `train`
  double valid_fraction = 0.05;   // share of `train` that is held out if `valid` is empty
  std::string tokenizer = "bpe";  // bpe: trained on `train`; bytes; or a tokenizer's folder
  int64_t bpe_vocab_size = 1024;
  bool documents = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("train", train, "training data: a folder of token shards (`based data pack`), or a text file: .txt, .jsonl, …, also .zst");
    field("valid", valid, "held-out data, in the same formats; empty: the end of train is held out, which must then be a text file");
    field("valid_fraction", valid_fraction, "share of train that is held out if valid is empty");
    field("tokenizer", tokenizer, "bpe: trained on train; bytes; or a tokenizer's folder (shards need the one they were packed with)");
    field("bpe_vocab_size", bpe_vocab_size, "vocabulary size of a tokenizer that is trained here");
    field("documents", documents, "keep documents apart: no token depends on another document; otherwise windows cross their boundaries");
  }
};

struct TextData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const TokenDataset> train, valid;  // each longer than a window
};

// `known`: a folder whose tokenizer replaces data.tokenizer, for a resumed run; empty: none. Throws UsageError for inconsistent keys, Error
// for files that cannot be used.
TextData load_text_data(const TextDataConfig& data, int64_t length, const std::string& known = {});

Batch to_batch(const TokenBatch& tokens, torch::Device device = torch::kCPU);

}  // namespace based
