// How well a model recalls.
#pragma once
#include <functional>
#include <vector>

#include "based/experiments/recall_run.h"
#include "based/models/language_model.h"

namespace based {

// Throws UsageError where the model learns fewer positions than an example has tokens.
void check_positions(const ModelConfig& model, int64_t length);

// Consecutive examples of a segment.
struct RecallPiece {
  const RecallData::Segment* of = nullptr;
  int64_t first = 0, count = 0;
  torch::Tensor places, targets;  // int64 [labels]: the piece's tokens that have a label, and the words that they are to say

  torch::Tensor inputs() const { return of->inputs.narrow(0, first, count).flatten(); }  // int64 [tokens]
};
// Pieces of `count` examples, the last one of those that are left. Labels are looked for once, for all pieces. The segment must outlive
// them.
std::vector<RecallPiece> recall_pieces(const RecallData::Segment& segment, int64_t count);

struct Recall {
  double mean = 0;               // over all examples
  std::vector<double> segments;  // of each
};
// The share of labels that is the model's most likely token behind the hidden states [tokens, d_model] that `read` gives of a piece.
// Throws Error where what the model says is not finite.
Recall measure_recall(LanguageModel& model, const std::vector<std::vector<RecallPiece>>& segments,
                      const std::function<torch::Tensor(const RecallPiece&)>& read);
// Read from the state that runs (LanguageModel::prefill), `batch` examples at once. Throws UsageError as check_positions, too.
Recall measure_recall(LanguageModel& model, const std::vector<RecallData::Segment>& test, int64_t batch);

}  // namespace based
