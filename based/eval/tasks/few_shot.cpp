#include "based/eval/tasks/few_shot.h"

#include <utility>

#include "based/eval/tasks/python_random.h"

namespace based {

std::vector<std::vector<int64_t>> draw_few_shot(const FewShotDraw& draw) {
  std::vector<std::vector<int64_t>> examples(static_cast<size_t>(draw.documents));
  if (draw.shots == 0) return examples;
  PythonRandom random(static_cast<uint32_t>(draw.seed));
  for (size_t document = 0; document < examples.size(); ++document) {
    std::vector<int64_t>& indices = examples[document] = random.sample(draw.pool, draw.shots + 1);
    if (draw.pool_is_evaluated) std::erase(indices, static_cast<int64_t>(document));
    indices.resize(static_cast<size_t>(draw.shots));
  }
  return examples;
}

std::string few_shot_text(const ChoiceItem& example) {
  return example.context + kChoiceDelimiter + example.choices[static_cast<size_t>(example.gold)] + "\n\n";
}

FewShotChoiceTask::FewShotChoiceTask(std::vector<ChoiceItem> items, std::vector<std::string> listed, FewShotPool pool)
    : MultipleChoiceTask(std::move(items), std::move(listed)),
      pool_(std::move(pool)),
      draws_(draw_few_shot({size(), std::ssize(pool_.texts), pool_.shots, pool_.is_evaluated, pool_.seed})) {}

FewShotExamples FewShotChoiceTask::examples(int64_t document) const {
  FewShotExamples examples{draws_[static_cast<size_t>(document)], ""};
  for (const int64_t index : examples.indices) examples.text += pool_.texts[static_cast<size_t>(index)];
  return examples;
}

}  // namespace based
