#include "based/eval/tasks/few_shot.h"

#include <utility>

#include "based/eval/tasks/python_random.h"

namespace based {
namespace {

// `count` draws without the rows that equal `document`.
std::vector<int64_t> draw_others(PythonRandom& random, std::span<const Hash128> pool, const Hash128& document, int64_t count) {
  std::vector<int64_t> others;
  for (size_t row = 0; row < pool.size(); ++row)
    if (pool[row] != document) others.push_back(static_cast<int64_t>(row));
  if (std::ssize(others) < count)
    throw UsageError("--shots " + std::to_string(count) + " needs as many examples that differ from the document, of which there are " +
                     std::to_string(others.size()));
  std::vector<int64_t> drawn = random.sample(std::ssize(others), count);
  for (int64_t& index : drawn) index = others[static_cast<size_t>(index)];
  return drawn;
}

}  // namespace

std::vector<std::vector<int64_t>> draw_few_shot(const FewShotDraw& draw) {
  std::vector<std::vector<int64_t>> examples(draw.documents.size());
  if (draw.shots == 0) return examples;
  if (std::ssize(draw.pool) <= draw.shots)
    throw UsageError("--shots " + std::to_string(draw.shots) + " needs " + std::to_string(draw.shots + 1) +
                     " rows to draw from, of which one may be the document itself; there are " + std::to_string(draw.pool.size()));
  PythonRandom random(static_cast<uint32_t>(draw.seed));
  for (size_t i = 0; i < examples.size(); ++i) {
    const Hash128& document = draw.documents[i];
    std::vector<int64_t>& indices = examples[i] = random.sample(std::ssize(draw.pool), draw.shots + 1);
    std::erase_if(indices, [&](int64_t row) { return draw.pool[static_cast<size_t>(row)] == document; });
    if (std::ssize(indices) < draw.shots) indices = draw_others(random, draw.pool, document, draw.shots);
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
      draws_(draw_few_shot({pool_.documents, pool_.rows, pool_.shots, pool_.seed})) {}

FewShotExamples FewShotChoiceTask::examples(int64_t document) const {
  if (draws_.empty()) return {};
  FewShotExamples examples{draws_[static_cast<size_t>(document)], ""};
  for (const int64_t index : examples.indices) examples.text += pool_.texts[static_cast<size_t>(index)];
  return examples;
}

}  // namespace based
