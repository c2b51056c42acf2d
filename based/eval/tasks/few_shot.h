// Few-shot examples as lm-eval draws and formats them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "based/core/hash.h"
#include "based/eval/tasks/multiple_choice.h"

namespace based {

// Rows of the data are represented by hashes of their contents: a row that equals a document is not an example of it.
struct FewShotDraw {
  std::span<const Hash128> documents;  // the evaluated split
  std::span<const Hash128> pool;       // the rows that examples are drawn from
  int64_t shots = 0;                   // examples for each document
  int64_t seed = 1234;                 // lm-eval's default; 0 … 2^32 − 1
};

// The pool indices of each document's examples, in order. One generator, random.Random(seed), serves all documents from 0 on: it draws
// shots + 1 distinct indices for each, of which the first `shots` are used that do not equal the document. Where too few are left, it draws
// `shots` others from the rows that do not equal it. Without shots all lists are empty. Throws UsageError if the pool has too few rows.
std::vector<std::vector<int64_t>> draw_few_shot(const FewShotDraw& draw);

// "{context} {gold choice}\n\n".
std::string few_shot_text(const ChoiceItem& example);

struct FewShotPool {
  int64_t shots = 0;               // examples for each document
  int64_t seed = 1234;             // FewShotDraw::seed
  std::vector<std::string> texts;  // few_shot_text() of each row; this and the next two are empty without shots
  std::vector<Hash128> rows;       // FewShotDraw::pool
  std::vector<Hash128> documents;  // FewShotDraw::documents
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
