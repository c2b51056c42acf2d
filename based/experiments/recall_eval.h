// Measures a model's accuracy on associative recall.
#pragma once
#include <functional>
#include <vector>

#include "based/experiments/recall_run.h"
#include "based/models/language_model.h"

namespace based {

// Throws UsageError if the model has learned position embeddings for fewer tokens than an example has.
void check_positions(const ModelConfig& model, int64_t length);

// Consecutive examples of a segment.
struct RecallPiece {
  const RecallData::Segment* segment = nullptr;
  int64_t first = 0, count = 0;
  torch::Tensor places, targets;  // int64 [labels]: indices of the piece's tokens that have a label, and the labels

  torch::Tensor inputs() const { return segment->inputs.narrow(0, first, count).flatten(); }  // int64 [tokens]
};
// Splits a segment into pieces of `count` examples; the last one may be smaller. Labels are searched once, for all pieces. The segment must
// outlive the pieces.
std::vector<RecallPiece> recall_pieces(const RecallData::Segment& segment, int64_t count);

struct Recall {
  double mean = 0;               // over all examples
  std::vector<double> segments;  // in each segment
};
// The share of labels that equal the model's most likely token. `read` returns the hidden states [tokens, d_model] of a piece. Throws Error
// if a logit is not finite.
Recall measure_recall(LanguageModel& model, const std::vector<std::vector<RecallPiece>>& segments,
                      const std::function<torch::Tensor(const RecallPiece&)>& read);
// The same, with the hidden states of LanguageModel::forward on `batch` examples at once. Also throws UsageError like check_positions.
Recall measure_recall(LanguageModel& model, const std::vector<RecallData::Segment>& test, int64_t batch);

}  // namespace based
