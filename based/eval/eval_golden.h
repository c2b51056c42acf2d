// Golden files of evaluation: requests, metrics and functions of lm-eval 0.4.13 that this library must reproduce without a model.
#pragma once
#include <string>

#include "based/models/golden.h"

namespace based {

struct EvalGoldenOptions {
  std::string data;       // folder of the unpacked data sets
  std::string tokenizer;  // empty: gpt2-bpe in `data`
};

// A folder with requests.jsonl or cases.json, either file itself, or another .json file whose members are named after functions. False for
// a file that cannot be read or parsed.
bool is_eval_golden(const std::string& path);

// A folder is named after its task: <task>, <task>_<n>shot or <task>_<max_length>. Each line of requests.jsonl is compared with the
// requests that this library makes of the document: strings, ids, hashes, cuts, few-shot indices, and the stub model's answers. Then
// metrics.json, if there is one: the metrics of these answers for each document and in total. A file of functions has a list of inputs and
// results for each. Numbers may differ by 1e-12, relatively, everything else must be equal. `output_error` is the largest relative
// difference, and infinite if something else differs; `worst` says where. A folder of requests to published models is compared with these
// models' scores (stored_models_golden.h), and skipped if they are not there. Throws UsageError if
// the data sets are not given, Error if a file is damaged.
GoldenResult check_eval_golden(const std::string& path, const EvalGoldenOptions& options);

}  // namespace based
