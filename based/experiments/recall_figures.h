// The pictures and the table of a recall experiment.
#pragma once
#include <map>

#include "based/experiments/kind.h"
#include "based/experiments/recall_run.h"

namespace based {

struct RecallShown {
  std::string title;
  RecallTask task;
  RecallTraining training;
  size_t rates = 1, seeds = 1;                // rates: the most of any series
  std::map<std::string, ModelConfig> models;  // by point_key
};
std::string point_key(const std::string& series, const std::string& label);

// Recall against bytes of state, by epoch and by segment.
std::vector<Figure> recall_figures(const RecallShown& shown, const std::vector<PointResult>& points);
std::string recall_table(const RecallShown& shown, const std::vector<PointResult>& points);

// How many numbers the paper says that a model's state has after `tokens` tokens; -1: it says nothing of one of its mixers.
int64_t paper_state_elements(const ModelConfig& model, int64_t tokens);

}  // namespace based
