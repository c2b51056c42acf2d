// The pictures and the table of a recall experiment.
#pragma once
#include "based/experiments/questions.h"

namespace based {

using RecallShown = QuestionsShown<RecallTask>;

// Recall against bytes of state, by epoch and by segment.
std::vector<Figure> recall_figures(const RecallShown& shown, const std::vector<PointResult>& points);
std::string recall_table(const RecallShown& shown, const std::vector<PointResult>& points);

// How many numbers the paper says that a model's state has after `tokens` tokens; -1: it says nothing of one of its mixers.
int64_t paper_state_elements(const ModelConfig& model, int64_t tokens);

}  // namespace based
