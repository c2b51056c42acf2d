// Golden files of evaluation with models: requests whose log-likelihoods a reference computed with published checkpoints.
#pragma once
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/data/tokenizer.h"
#include "based/models/golden.h"

namespace based {

// The folder of the model that a line names: ../../checkpoints/<model>, seen from the folder of the requests.
std::string stored_model_folder(const std::string& requests_folder, const Json& line);

// Compares each line of <folder>/requests.jsonl with the scores of its model in fp64, absolutely: the tolerance is 1e-10. Log-likelihoods
// are over all columns of the logits, the padded ones too. A token's id is taken modulo the model's vocabulary, since the models are small.
// A line has a context and a continuation as text (cut to 64 tokens) or as ids, or a text that is read in windows of `max_length` tokens.
// Throws Error, or Json::exception for a line of another form.
GoldenResult check_stored_models(const std::string& folder, const std::vector<Json>& lines, const Tokenizer& tokenizer);

}  // namespace based
