// The settings of a training run in the form of the paper's tables of training settings (appendix, "Training Settings").
#pragma once
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/train/text_run.h"

namespace based {

struct RecipeRow {
  std::string name, value;  // "Learning rate (min, base)", "8e-5, 8e-4"
};

struct Recipe {
  // The paper's rows under the paper's names, followed by those that it leaves out: {optimizer, schedule, model, mixers, run}. A remark in
  // parentheses may follow a value.
  std::vector<std::vector<RecipeRow>> sections;
  int64_t parameters = 0;
  int64_t steps = 0, warmup_steps = 0;
  int64_t tokens_per_step = 0, tokens = 0;  // `tokens`: of all steps
};

// Reads no data: the vocabulary is the config's or its preset's. No weights are allocated. Throws UsageError for keys
// that one device cannot train with, and for a group of the optimizer that matches no parameter.
Recipe make_recipe(const TextRun& run);

// Two columns, with an empty line between sections.
std::string recipe_text(const Recipe& recipe);
// {"settings": {name: value}, "parameters", "steps", "warmup_steps", "tokens_per_step", "tokens"}.
Json recipe_json(const Recipe& recipe);

}  // namespace based
