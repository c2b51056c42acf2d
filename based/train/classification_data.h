// The sets of a classification run and their batches.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/data/labelled_sequences.h"
#include "based/train/classification.h"

namespace based {

struct ClassificationData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::string> classes;
  std::unique_ptr<LabelledTokens> train, dev, test;  // test null: none
  std::string hash() const;
};

// `most`: tokens of the longest sequence that the model can read; 0: any. Throws Error for sets that cannot be used, and for a sequence of
// dev or test whose label is none of train's.
ClassificationData load_classification_data(const ClassificationConfig& config, std::shared_ptr<const Tokenizer> tokenizer, int64_t seed,
                                            int64_t most);

// Batches of a training set in an order that depends on the seed and the epoch. A batch may span two epochs.
class ClassBatches {
 public:
  struct Options {
    int64_t batch = 1, seed = 0;
    double reverse_complement = 0;
  };
  ClassBatches(const LabelledTokens& data, const Options& options, torch::Device device)
      : data_(data), options_(options), device_(device) {}

  Batch at(int64_t step) const;  // Batch::labels: int64 [sequences]; windows: the sequences' indices

 private:
  const LabelledTokens& data_;
  Options options_;
  torch::Device device_;
};

// The sequences with these indices as one packed batch. `reversed` says for each whether it is replaced by its reverse complement; empty:
// none.
Batch class_batch(const LabelledTokens& data, const std::vector<int64_t>& indices, const std::vector<bool>& reversed, torch::Device device);

}  // namespace based
