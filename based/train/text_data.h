// The training and held-out text of a language model, read from token shards or tokenised in memory, and its batches.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/data/loader.h"
#include "based/train/loop.h"

namespace based {

struct TextSetConfig {
  std::string path;
  double weight = 1;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("path", path, "a folder of token shards, or a text file, as data.train");
    field("weight", weight, "share of the training windows, relative to the other sets' weights");
  }
};

struct TextDataConfig {
  std::string train;  // relative to the working folder; empty if there are `sets`
  std::vector<TextSetConfig> sets;
  std::string valid;              // held-out text; empty: the end of `train`
  double valid_fraction = 0.05;   // share of `train` that is held out if `valid` is empty
  std::string tokenizer = "bpe";  // bpe: trained on `train`; bytes; dna; or a tokenizer's folder
  int64_t bpe_vocab_size = 1024;
  bool documents = false;
  bool rows = false;
  double reverse_complement = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("train", train, "training data: a folder of token shards (`based data pack`), or a text file: .txt, .jsonl, …, also .zst");
    field("sets", sets, "instead of train, several sets of training data: tables [[data.sets]]");
    field("valid", valid, "held-out data, in the same formats; empty: the end of train is held out, which must then be a text file");
    field("valid_fraction", valid_fraction, "share of train that is held out if valid is empty");
    field("tokenizer", tokenizer, "bpe: trained on train; bytes; dna; or a tokenizer's folder (shards need the one they were packed with)");
    field("bpe_vocab_size", bpe_vocab_size, "vocabulary size of a tokenizer that is trained here");
    field("documents", documents, "keep documents apart: no token depends on another document; otherwise windows cross their boundaries");
    field("rows", rows, "each document is a row of train.length + 1 tokens, as `based dna rows` packs them");
    field("reverse_complement", reverse_complement,
          "DNA: chance that a training row is replaced by its reverse complement, drawn each epoch");
  }
};

struct TextData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const TokenMixture> train;  // each set is longer than a window
  std::shared_ptr<const TokenDataset> valid;  // longer than a window
};

// The training data's paths, for messages: data.train, or the sets' paths with commas between them.
std::string training_paths(const TextDataConfig& data);

// Throws UsageError for inconsistent keys, and Error for a path that names nothing. Reads no data.
void check_text_data(const TextDataConfig& data);

// `known`: a folder whose tokenizer replaces data.tokenizer, for a resumed run; empty: none. `ranks`: processes of the job, each of which
// loads the data; text that is not packed is encoded by each of them, to equal tokens. Throws as check_text_data() does, and Error for
// files that cannot be used.
TextData load_text_data(const TextDataConfig& data, int64_t length, const std::string& known = {}, int64_t ranks = 1);

Batch to_batch(const TokenBatch& tokens, torch::Device device = torch::kCPU);

}  // namespace based
