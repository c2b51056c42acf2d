// The tasks of SuperGLUE (Wang et al., 2019) in lm-eval's form. superglue.cpp has BoolQ, CB, COPA, RTE and WiC; multirc.cpp, record.cpp and
// wsc.cpp have the others.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "based/eval/tasks/few_shot.h"
#include "based/eval/tasks/json_reader.h"

namespace based {

struct SuperGlueSplits {
  std::string evaluated;  // below --data: "superglue/CB/val.jsonl"
  std::string pool;       // file of the few-shot examples; may be the evaluated one
};

// Appends the items of one line of a file. Items without a place get the line's, and items without a source its row.
using SuperGlueReader = std::function<void(const DataField& line, std::vector<ChoiceItem>& items)>;

struct SuperGlueData {
  std::vector<ChoiceItem> items;
  FewShotPool pool = {};
};

// Reads the evaluated split, and the pool if there are shots. Throws Error naming file, line and field.
SuperGlueData read_superglue(const EvalTaskOptions& options, const SuperGlueSplits& splits, const SuperGlueReader& read);

// text[first:last] of Python: by code points; bounds past the end mean the end.
std::string_view python_slice(std::string_view text, int64_t first, int64_t last);

}  // namespace based
