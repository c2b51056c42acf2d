// Few-shot examples as lm-eval draws and formats them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "based/eval/tasks/multiple_choice.h"

namespace based {

struct FewShotDraw {
  int64_t documents = 0;           // in the evaluated split
  int64_t pool = 0;                // documents that examples are drawn from
  int64_t shots = 0;               // examples for each document
  bool pool_is_evaluated = false;  // the pool is the evaluated split: a document is not its own example
  int64_t seed = 1234;             // lm-eval's default; 0 … 2^32 − 1
};

// The pool indices of each document's examples, in order. One generator, random.Random(seed), serves all documents from 0 on: it draws
// shots + 1 distinct indices for each, of which the first `shots` are used, without the document itself if `pool_is_evaluated`. Without
// shots all lists are empty. Throws UsageError if the pool has fewer than shots + 1 documents.
std::vector<std::vector<int64_t>> draw_few_shot(const FewShotDraw& draw);

// "{context} {gold choice}\n\n".
std::string few_shot_text(const ChoiceItem& example);

struct FewShotPool {
  int64_t shots = 0;               // examples for each document
  std::vector<std::string> texts;  // few_shot_text() of each document of the pool; may be empty without shots
  bool is_evaluated = false;       // the pool is the evaluated split
  int64_t seed = 1234;             // FewShotDraw::seed
};

// A multiple-choice task whose contexts begin with examples.
class FewShotChoiceTask : public MultipleChoiceTask {
 public:
  // `listed` as in MultipleChoiceTask. Throws UsageError if the pool is too small.
  FewShotChoiceTask(std::vector<ChoiceItem> items, std::vector<std::string> listed, FewShotPool pool);

 protected:
  FewShotExamples examples(int64_t document) const override;

 private:
  FewShotPool pool_;
  std::vector<std::vector<int64_t>> draws_;  // one list a document
};

}  // namespace based
