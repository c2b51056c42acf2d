// The figures and the table of a recall experiment.
#pragma once
#include "based/experiments/questions.h"

namespace based {

using RecallSummary = QuestionsSummary<RecallTask>;

// Figures of recall against bytes of state, against parameters, by epoch and by number of pairs.
std::vector<Figure> recall_figures(const RecallSummary& summary, const std::vector<PointResult>& points);
std::string recall_table(const RecallSummary& summary, const std::vector<PointResult>& points);

// The size of a model's state after `tokens` tokens, in numbers, as the paper counts it; -1 if the paper does not cover one of its mixers.
int64_t paper_state_elements(const ModelConfig& model, int64_t tokens);

}  // namespace based
