// How well a model recalls.
#pragma once
#include <vector>

#include "based/experiments/recall_run.h"
#include "based/models/language_model.h"

namespace based {

// Throws UsageError where the model learns fewer positions than an example has tokens.
void check_positions(const ModelConfig& model, int64_t length);

struct Recall {
  double mean = 0;               // over all examples
  std::vector<double> segments;  // of each
};
// The share of labels that is the model's most likely token, read from the state that runs (LanguageModel::prefill), `batch` examples at
// once. Throws UsageError as check_positions, and Error where what the model says is not finite.
Recall measure_recall(LanguageModel& model, const std::vector<RecallData::Segment>& test, int64_t batch);

}  // namespace based
